//! Compares with what Go wrote, for small inputs byte for byte, for large ones by digest.
//!
//! The streams are from this program, built with Go 1.21.13, 1.26.4 and 1.27.3:
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
const FROM_127: Codec = Codec::Go(GoVersion::From127);

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
    for (input, until_126, from_127) in [
        (&b""[..], "7801010000ffff00000001", "7801030000000001"),
        (
            b"a",
            "7801000100feff61010000ffff00620062",
            "7801000100feff61030000620062",
        ),
        (
            &counted[..16],
            "7801001000efff000102030405060708090a0b0c0d0e0f010000ffff02b80079",
            "7801001000efff000102030405060708090a0b0c0d0e0f030002b80079",
        ),
        (
            &counted[..17],
            "7801001100eeff000102030405060708090a0b0c0d0e0f10010000ffff03410089",
            "7801001100eeff000102030405060708090a0b0c0d0e0f10030003410089",
        ),
        (
            &[b'a'; 127],
            "780104c08100000000009056ff1300000000000000000000000000000000060000ffff08f33020",
            "780104c08100000000009056ff13000000000000000000000000000000000e0008f33020",
        ),
        (
            &[b'a'; 128],
            "7801c4c081000000008020d6fd25c6a8b0030000ffff39743081",
            "78014a4c1c5808180039743081",
        ),
        (
            &[0; 1000],
            "7801ecc0010d000000c220fba7b6c70703f21e0000ffff03e80001",
            "780162601885a370140e7708180003e80001",
        ),
        (
            &text,
            "7801ac8ecb11852010045399005e062f9a155644655751fc456f21472f5ae575a6baabe78631266f3a54515741ad1bda148609ba7044be7b\
             3a7658753f90d86b7908801c7929d8cd0615c3081af9ffc6596c39ebeb88330000ffff01f45f35",
            "78012ac94855282ccd4cce56482aca2fcf5348cbaf50c82acd2d2856c82f4b2d5228c94855c849acaa5448c94fd75148cc4b018b10a94121\
             313d31330fa20dc33485fcbce45485dcfca2546b8541e108c00001f45f35",
        ),
    ] {
        for (codec, expected) in [(UNTIL_126, until_126), (FROM_127, from_127)] {
            assert_eq!(
                hex(&compress(codec, [input])),
                expected,
                "{codec}: {} bytes",
                input.len()
            );
        }
    }
}

#[test]
fn large_streams_are_those_of_go() {
    let few_bits = noise(6, 300_000).into_iter().map(|byte| byte & 0x1f).collect();
    for (input, until_126, from_127) in [
        (
            [
                content(4, 100_000),
                noise(5, 150_000),
                few_bits,
                content(7, 200_000),
                vec![0; 70_000],
            ]
            .concat(),
            "46222b7b6e9a817d92f458f69472005c6f5cd60c86763b06a466575e47e86192",
            "de5fd98ac0b180cc80359c61c27ba1d5111e5ca0f9d904c7c6e00b653772fd3b",
        ),
        (
            content(1, 65_534),
            "40dce27384e21aa54655441c8eb7c99c364d902ddce85ad600ab0d69699407e3",
            "d6327a2388758d35b0d1e4b0f41784dea132c8a624292292074c38220dd713db",
        ),
        (
            content(1, 65_535),
            "5839a8fc943ad0375ea0d0ddfaac6ea5ea96bb88cabb814f73a0e3d4ec63b0b7",
            "157c77a8093b8f57dbfb8eb99560922db4b97320308b88a38a64118278304eab",
        ),
        (
            content(1, 65_536),
            "9742c30958c03683ede28b7f1fd2c59e7229c5b164dac3985ef61b14a56462fa",
            "39e857c73edcf295ec8e6b53255db04700b4c616c8134f57b60408358fe22f80",
        ),
        (
            content(1, 131_070),
            "546a017a7c1576b88de945eebc93aa0c6fbb23fbb1547b36a3a3cff59e7dcca5",
            "b16a325b6c85fab5864af84c81ab881336f04ec4ac11741760102b935afc90ec",
        ),
        (
            content(1, 131_198),
            "8c30dadbe9955d666205ee1535b575cc8611ed1b9ea8f37f15682f41ab12e124",
            "298ad27b7b26d1ee34522f2197d41cfa26aad1a1055623db70cb6a27d382a774",
        ),
        (
            content(2, 900_000),
            "c0ac2adf7fb6b69288dc72f1486f735168ac4e5d2282ce69427c4e3d8fbb9b20",
            "d6311ff5b12fb4fc56aa2e531119bb80abf790e515582f75d098b54b34871c1d",
        ),
        (
            noise(3, 70_000),
            "763946a23af5449a8bb72f060d30c599f54beace0f9eb2164a0c5c5fac9def4f",
            "027e631f4c1463cf8fd89712d10bca7067415776b4f17c5b767a3432bb1d8414",
        ),
    ] {
        for (codec, expected) in [(UNTIL_126, until_126), (FROM_127, from_127)] {
            let stream = compress(codec, [input.as_slice()]);
            assert_eq!(
                hex(&Sha256::digest(&stream)),
                expected,
                "{codec}: {} bytes",
                input.len()
            );
        }
    }
}
