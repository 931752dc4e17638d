//! Makes Huffman codes of limited length as Go does: by package-merge, where a package precedes a symbol of equal frequency.
//!
//! Several codes of equal total length exist for most frequencies; the order of equal ones decides which is written.
//! Larmore and Hirschberg, "A fast algorithm for optimal length-limited Huffman codes" (1990).

/// Literals, the end of a block, and lengths.
pub(super) const LITERALS: usize = 286;

/// Distances.
pub(super) const OFFSETS: usize = 30;

/// Longest code of literals and distances.
pub(super) const MAX_BITS: usize = 15;

/// Most items of one level of package-merge: two fewer than twice the symbols.
const MAX_ITEMS: usize = 2 * LITERALS - 2;

/// The bits of one symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    /// In the order in which they are written: the lowest first.
    pub(super) bits: u16,
    /// How many; 0 if the symbol does not occur.
    pub(super) length: u8,
}

/// Sets the code of every symbol by how often it occurs, none longer than `max_bits`.
pub(super) fn assign_codes(frequencies: &[u32], max_bits: usize, codes: &mut [Code]) {
    codes.fill(Code::default());
    // The frequency above the symbol: the order of both. Frequencies are at most 65536.
    let mut keys = [0_u32; LITERALS];
    let mut count = 0;
    for (symbol, &frequency) in frequencies.iter().enumerate() {
        if frequency > 0 {
            keys[count] = frequency << 10 | symbol as u32;
            count += 1;
        }
    }
    let keys = &mut keys[..count];
    keys.sort_unstable();
    let symbol = |key: u32| (key & 0x3ff) as usize;
    match keys {
        [] => return,
        [single] => codes[symbol(*single)].length = 1,
        keys => {
            let lengths = package_merge(keys, max_bits.min(count - 1));
            for (key, length) in keys.iter().zip(lengths) {
                codes[symbol(*key)].length = length;
            }
        }
    }
    number_codes(codes);
}

/// The length of the code of each symbol, in the order of `keys`.
fn package_merge(keys: &[u32], max_bits: usize) -> impl Iterator<Item = u8> {
    let items = 2 * keys.len() - 2;
    // How many of the first items of a level are symbols, not packages.
    let mut symbols_among = [[0_u16; MAX_ITEMS + 1]; MAX_BITS];
    // Frequencies of the items of a level and of the one below it.
    let mut below = [0_u32; MAX_ITEMS];
    let mut level = [0_u32; MAX_ITEMS];
    let mut below_count = 0;
    for symbols_among in &mut symbols_among[..max_bits] {
        let (mut symbol, mut package, mut count) = (0, 0, 0);
        while count < items {
            let symbol_frequency = keys.get(symbol).map(|key| key >> 10);
            let package_frequency = (package + 1 < below_count).then(|| below[package] + below[package + 1]);
            level[count] = match (symbol_frequency, package_frequency) {
                (Some(alone), together) if together.is_none_or(|together| alone < together) => {
                    symbol += 1;
                    alone
                }
                (_, Some(together)) => {
                    package += 2;
                    together
                }
                _ => break,
            };
            count += 1;
            symbols_among[count] = symbol as u16;
        }
        std::mem::swap(&mut below, &mut level);
        below_count = count;
    }
    // The wanted items of the top level consist of symbols and of packages, which are pairs of the level below. A code is
    // as long as the number of levels where its symbol is wanted.
    let mut wanted = items;
    let mut symbols_of_levels = [0_u16; MAX_BITS];
    for (symbols, symbols_among) in symbols_of_levels.iter_mut().zip(&symbols_among[..max_bits]).rev() {
        *symbols = symbols_among[wanted];
        wanted = 2 * (wanted - usize::from(*symbols));
    }
    (0..keys.len() as u16).map(move |symbol| {
        symbols_of_levels
            .iter()
            .filter(|&&symbols| symbols > symbol)
            .count() as u8
    })
}

/// RFC 1951, 3.2.2: codes of one length are consecutive numbers in the order of their symbols.
fn number_codes(codes: &mut [Code]) {
    let mut next = [0_u16; MAX_BITS + 2];
    for code in codes.iter() {
        next[usize::from(code.length) + 1] += 1;
    }
    next[1] = 0;
    for length in 1..next.len() {
        next[length] = (next[length] + next[length - 1]) << 1;
    }
    for code in codes.iter_mut().filter(|code| code.length > 0) {
        let number = &mut next[usize::from(code.length)];
        code.bits = number.reverse_bits() >> (16 - code.length);
        *number += 1;
    }
}

/// How many bits the codes take.
pub(super) fn coded_bits(frequencies: &[u32], codes: &[Code]) -> usize {
    frequencies
        .iter()
        .zip(codes)
        .map(|(&frequency, code)| frequency as usize * usize::from(code.length))
        .sum()
}

/// The fixed codes of literals and of distances (RFC 1951, 3.2.6).
pub(super) fn fixed_codes() -> ([Code; LITERALS], [Code; OFFSETS]) {
    // Each has two more symbols, which never occur.
    let mut literals = [Code::default(); LITERALS + 2];
    for (symbol, code) in literals.iter_mut().enumerate() {
        code.length = match symbol {
            144..256 => 9,
            256..280 => 7,
            _ => 8,
        };
    }
    number_codes(&mut literals);
    let mut offsets = [Code { bits: 0, length: 5 }; OFFSETS + 2];
    number_codes(&mut offsets);
    (
        std::array::from_fn(|symbol| literals[symbol]),
        std::array::from_fn(|symbol| offsets[symbol]),
    )
}
