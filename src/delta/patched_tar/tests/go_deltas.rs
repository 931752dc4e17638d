//! Deltas that containers/tar-diff made.
//!
//! tar-diff of commit f08980f165b5b4e50c466a695b906b9b28069c6c with klauspost/compress 1.18.4. The tars were made by
//! `tar --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=0755 -b1 -cf TAR *`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;

/// `seq FIRST LAST`
fn numbers(range: std::ops::RangeInclusive<u32>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

fn digest_of_tar(delta: &str, files: &[(&str, &[u8])]) -> String {
    let delta = STANDARD.decode(delta).unwrap();
    let tar = apply(Format::TarDiff, &delta, Images::new(&[files])).unwrap();
    crate::oci::Digest::of(&tar).to_string()
}

/// `tar-diff -compression-level 19 OLD NEW DELTA`
///
/// - old: `usr/bin/numbers` from `seq 1 400`, `etc/same` from `seq 500 600`
/// - new: `usr/bin/numbers` from `seq 1 400 | sed 's/^100$/one hundred/; s/^2/3/'`, a copy of `etc/same` as
///   `usr/lib/moved`, `etc/new` from `echo new`
///
/// Data, Open, Copy, AddData and Seek.
#[test]
fn a_delta_of_changed_and_moved_files() {
    const DELTA: &str = "\
        dGFyZGYxCgAotS/9ZLUZ5QgAgg4uKZAHDTBLlBlInePklZmFJ7KE+GmDzfO7FZWEW8rctLOHXYvw1xOX0t49K8JpIVloQVkT\
        7XrLa8u77exBA2LxYTDxYbBJ63LwelC2bZshrYeybVshrYdKCSlpUM5OR1YDZWUDAIFICjWQFAqxCRKdG6EqmXwim7QGIA62\
        hSmAC50boSqfY/KJbNL62t8mrU44Vl5xg8wbY9uxkjXR+v//+///+/dcRLTaKf6D8P//2zn4/2ZNtAIIDiAANOA/ICSclQyo\
        GSAjgtTPgMoeOYLUFsjvmLmqR5xcqlpxVOACVJAC6gExA5htbABQJaAjEaSGDaiY8VJ8DKj6MWCmBr6rajCgMpBZHiDSjgSo\
        RSAd8Kb8kgQrSGUmFwfUpCxG";
    let (changed, moved) = (numbers(1..=400), numbers(500..=600));
    let files = [
        ("usr/bin/numbers", changed.as_bytes()),
        ("etc/same", moved.as_bytes()),
    ];
    assert_eq!(
        digest_of_tar(DELTA, &files),
        "sha256:3c363bf039729b3d5ab2611a8582dce6c6ab26d043127dbda84d75b7073f8402"
    );
}

/// `tar-diff -max-bsdiff-size 1 -compression-level 19 OLD NEW DELTA`
///
/// - old: `lines` from `seq -f 'this is line number %.0f of the file' 1 40000`
/// - new: the same without lines 15001 to 20000
///
/// 217 times Copy, because the file is too large for bsdiff.
#[test]
fn a_delta_of_a_large_file() {
    const DELTA: &str = "\
        dGFyZGYxCgAotS/9ZCNcDR8AUriYOQBZgABH1YAOfG/7AFBeRafvum39zfZZdsT175ByTXFm/r8qcCwYm1JKPKU0KV6Xo4af\
        UJ7RKWn3PtAAG2hBkRTlmJLUSIp2NBGxgkUMl0+CHamFSGpwIkCWqIQNDDQeLEkVhlAwkVqyJBockZAcM2oIUJIQwIhYxHD5\
        uHzSCBfoo0GU9AKBhJEWVf3///8zMzMzMxERERER7+7u7u7MzMzMzOr1er1er9fr9e7u7u5uZmZmZubd3d3dXVVVVVXV////\
        PzMzMzMTEREREfHu7u7uzszMzMyssrKysrKysrKysru7u7ubmZmZmXl3d3d3V1VVVVX1////z8zMzMxERERERLy7u7u7MzMz\
        MzMrLCwsLCwsLCws7O7u7u5mZmZmZt7d3d3dVVVVVVX9////MzMzMzMREREREe/u7u7uzMzMzMzq6urq6urq6urquru7u7uZ\
        mZmZmXd3d3d3VVVVVVX/////zMzMzExERERExLu7u7s7MzMzM7OysrKysrKysrKy7u7u7m5mZmZm5t3d3d1dVVVVVdX///8/\
        MzMzMxMRERER8e7u7u6OV594Vta8+sSzqrqqevOq591pnhAwGjzQfPB4ZGI8MjEcZgjAdIjZ4IHhMOPZACKawQTqIMnBkdSp\
        sZAidWouVEkuLRLnRsWT9JI4N+kldVCkTk100yN1apIBICmCksThwQBL4vBIUY0kSG5SgR8pcmKTYl7IoJIG6EgHrqTIBRAF\
        VpIEFmnCjYQzEgdHimykpPT5pAhKAhAVFCLDjAwNVB7o9soKKki/a/Wq+reqCpKB+RDToeUDBYJpqEIwN0ABQAACkAQyBwwJ\
        gwYSYAAAACBgAAABCAACACAACACAAAAIDgCWfAYEUAAdwE8b0T4fanMDzmeQbdxt/Qb4phyTo9hs1pDJoZrccLT8VKr9/Dkf\
        BynQqtDkgzP90DmH+9TSbvr+PhfnN0X9qYbMtqMefjGld/sbKXeAFiAChAAUICAIQABgRMtr87sh0QMLVwMUACkQKABAAIAA\
        AAIABAEoACAAQBDgxmiS8OLC0i0RAkADQAEAAgAEABAAIAhAAQABAAIAZBhgdcl8MzBqkBoIoIIAAAEABAAIAFAASACAAAAB\
        AAQiLLgbkh5YuHpkFxBAAAgAIABAAIACQAIABAAIACAAQCETDi1ZH26MJhkKASAEAAgAEABQAIIAAAEABAAIyIo/IIkTBZSL\
        swUnWDUzHR0e/NaUFjvgMltP6byGH8A5/F27iT+Pab+b3zGcAoTW593x5xVavwrs/5zkVxuwFj/1u90HjVX/Z+6Hfv5D//sL\
        278PZxZJLA==";
    let lines: String = (1..=40_000)
        .map(|number| format!("this is line number {number} of the file\n"))
        .collect();
    assert_eq!(
        digest_of_tar(DELTA, &[("lines", lines.as_bytes())]),
        "sha256:145fba7e18ad0ad5c5af1a50bb7776fbd5dd8fdf6be787557f8df866c8c8a389"
    );
}
