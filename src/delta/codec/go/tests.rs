//! Compares with what Go wrote, for small inputs byte for byte, for large ones by digest.
//!
//! The streams are from this program, built with Go 1.21.13 and 1.26.4:
//!
//! ```go
//! func main() {
//!     z, _ := zlib.NewWriterLevel(os.Stdout, zlib.BestSpeed)
//!     io.Copy(z, os.Stdin)
//!     z.Close()
//! }
//! ```

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::super::tests::{compress, content, noise};
use super::super::{Codec, GoVersion};

const UNTIL_126: Codec = Codec::Go(GoVersion::Until126);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string accepts everything");
        hex
    })
}

#[test]
fn small_streams_are_those_of_go() {
    let counted: Vec<u8> = (0..=255).collect();
    let text = b"the quick brown fox jumps over the lazy dog, and the quick brown fox jumps over the lazy dog again, and over \
                 the lazy dog once more; "
        .repeat(2);
    for (input, expected) in [
        (&b""[..], "7801010000ffff00000001"),
        (b"a", "7801000100feff61010000ffff00620062"),
        (
            &counted[..16],
            "7801001000efff000102030405060708090a0b0c0d0e0f010000ffff02b80079",
        ),
        (
            &counted[..17],
            "7801001100eeff000102030405060708090a0b0c0d0e0f10010000ffff03410089",
        ),
        (
            &[b'a'; 127],
            "780104c08100000000009056ff1300000000000000000000000000000000060000ffff08f33020",
        ),
        (
            &[b'a'; 128],
            "7801c4c081000000008020d6fd25c6a8b0030000ffff39743081",
        ),
        (
            &[0; 1000],
            "7801ecc0010d000000c220fba7b6c70703f21e0000ffff03e80001",
        ),
        (
            &text,
            "7801ac8ecb11852010045399005e062f9a155644655751fc456f21472f5ae575a6baabe78631266f3a54515741ad1bda148609ba7044be7b\
             3a7658753f90d86b7908801c7929d8cd0615c3081af9ffc6596c39ebeb88330000ffff01f45f35",
        ),
    ] {
        assert_eq!(
            hex(&compress(UNTIL_126, [input])),
            expected,
            "{} bytes",
            input.len()
        );
    }
}

#[test]
fn large_streams_are_those_of_go() {
    for (input, length, digest) in [
        (
            content(1, 65_534),
            8_621,
            "40dce27384e21aa54655441c8eb7c99c364d902ddce85ad600ab0d69699407e3",
        ),
        (
            content(1, 65_535),
            8_621,
            "5839a8fc943ad0375ea0d0ddfaac6ea5ea96bb88cabb814f73a0e3d4ec63b0b7",
        ),
        (
            content(1, 65_536),
            8_627,
            "9742c30958c03683ede28b7f1fd2c59e7229c5b164dac3985ef61b14a56462fa",
        ),
        (
            content(1, 131_070),
            15_501,
            "546a017a7c1576b88de945eebc93aa0c6fbb23fbb1547b36a3a3cff59e7dcca5",
        ),
        (
            content(1, 131_198),
            15_533,
            "8c30dadbe9955d666205ee1535b575cc8611ed1b9ea8f37f15682f41ab12e124",
        ),
        (
            content(2, 900_000),
            95_837,
            "c0ac2adf7fb6b69288dc72f1486f735168ac4e5d2282ce69427c4e3d8fbb9b20",
        ),
        (
            noise(3, 70_000),
            70_021,
            "763946a23af5449a8bb72f060d30c599f54beace0f9eb2164a0c5c5fac9def4f",
        ),
    ] {
        let stream = compress(UNTIL_126, [input.as_slice()]);
        assert_eq!(
            (stream.len(), hex(&Sha256::digest(&stream)).as_str()),
            (length, digest),
            "{} bytes",
            input.len()
        );
    }
}
