//! Compares what deltas make with the result of a simple program that keeps everything in memory.

use proptest::prelude::*;

use super::*;

/// An operation whose numbers may be out of bounds.
#[derive(Clone, Debug)]
enum Step {
    Data(Vec<u8>),
    Open(usize),
    Copy(u64),
    Add(Vec<u8>),
    Seek(u64),
    Deflate(u8, u64),
}

/// What the deltas read: small and large files of two images, and a zlib stream.
struct World {
    images: Images,
    names: Vec<(SourceName, Vec<u8>)>,
}

fn world() -> World {
    let large: Vec<u8> = (0..40_000_u32)
        .flat_map(|number| (number * number).to_le_bytes())
        .collect();
    let section = zlib(&large, 6);
    let images = Images::new(&[
        &[
            ("small", b"a small file"),
            ("large", &large),
            ("section", &section),
        ],
        &[("small", b"another small file")],
    ]);
    let range = InflatedRange {
        offset: 0,
        length: section.len() as u64,
        inflated_length: large.len() as u64,
    };
    let names = vec![
        (SourceName::file("small"), b"a small file".to_vec()),
        (SourceName::file("large"), large.clone()),
        (SourceName::file_in(1, "small"), b"another small file".to_vec()),
        (SourceName::file("section").inflated(range), large),
    ];
    World { images, names }
}

impl World {
    /// The tar, or `None` if a step is at fault.
    fn expected(&self, steps: &[Step]) -> Option<Vec<u8>> {
        let (mut source, mut tar) = (None::<(&[u8], u64)>, Vec::new());
        let mut stream: Option<(u8, u64, Vec<u8>)> = None;
        for step in steps {
            let output = match step {
                Step::Data(data) => data.clone(),
                Step::Open(index) => {
                    source = Some((&self.names[*index].1, 0));
                    continue;
                }
                Step::Seek(position) => {
                    source.as_mut()?.1 = *position;
                    continue;
                }
                Step::Deflate(level, length) => {
                    if stream.is_some() {
                        return None;
                    }
                    stream = Some((*level, *length, Vec::new()));
                    Vec::new()
                }
                Step::Copy(0) => source.map(|_| Vec::new())?,
                Step::Copy(length) => {
                    let (content, position) = source.as_mut()?;
                    let from = content.get(usize::try_from(*position).ok()?..)?;
                    *position += length;
                    from.get(..usize::try_from(*length).ok()?)?.to_vec()
                }
                Step::Add(differences) if differences.is_empty() => source.map(|_| Vec::new())?,
                Step::Add(differences) => {
                    let (content, position) = source.as_mut()?;
                    let from = content.get(usize::try_from(*position).ok()?..)?;
                    let from = from.get(..differences.len())?;
                    *position += differences.len() as u64;
                    let sums = from.iter().zip(differences).map(|(a, b)| a.wrapping_add(*b));
                    sums.collect()
                }
            };
            match &mut stream {
                None => tar.extend(output),
                Some((level, length, inflated)) => {
                    inflated.extend(output);
                    match (inflated.len() as u64).cmp(length) {
                        std::cmp::Ordering::Less => {}
                        std::cmp::Ordering::Equal => {
                            tar.extend(zlib(inflated, *level));
                            stream = None;
                        }
                        std::cmp::Ordering::Greater => return None,
                    }
                }
            }
        }
        stream.is_none().then_some(tar)
    }

    fn delta(&self, steps: &[Step]) -> Vec<u8> {
        let operation = |step: &Step| match step {
            Step::Data(data) => (
                Operation::Data {
                    length: data.len() as u64,
                },
                data.clone(),
            ),
            Step::Open(index) => (Operation::Open(self.names[*index].0.clone()), Vec::new()),
            Step::Copy(length) => (Operation::Copy { length: *length }, Vec::new()),
            Step::Add(data) => (
                Operation::AddData {
                    length: data.len() as u64,
                },
                data.clone(),
            ),
            Step::Seek(position) => (Operation::Seek { position: *position }, Vec::new()),
            Step::Deflate(level, length) => {
                let codec = Codec::from_byte(*level).unwrap();
                (
                    Operation::Deflate {
                        codec,
                        length: *length,
                    },
                    Vec::new(),
                )
            }
        };
        let operations: Vec<(Operation, Vec<u8>)> = steps.iter().map(operation).collect();
        let steps: Vec<super::Step<'_>> = operations
            .iter()
            .map(|(operation, data)| (operation.clone(), &data[..]))
            .collect();
        delta(Format::InflatedTarDiff, &steps)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..12);
    prop_oneof![
        2 => bytes().prop_map(Step::Data),
        4 => (0..4_usize).prop_map(Step::Open),
        4 => (0..12_u64).prop_map(Step::Copy),
        2 => (0..120_000_u64).prop_map(Step::Copy),
        4 => bytes().prop_map(Step::Add),
        1 => (1_000..100_000_usize).prop_map(|length| Step::Add(vec![1; length])),
        2 => (0..10_u64).prop_map(Step::Seek),
        1 => (0..200_000_u64).prop_map(Step::Seek),
        1 => (1..10_u8, 0..12_u64).prop_map(|(level, length)| Step::Deflate(level, length)),
    ]
}

/// Steps that succeed more often: a source is open, and a zlib stream has its output.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stream = (1..10_u8, 0..100_000_u64).prop_map(|(level, length)| {
        vec![
            Step::Deflate(level, length),
            Step::Open(3),
            Step::Copy(length / 2),
            Step::Copy(length - length / 2),
        ]
    });
    let part = prop_oneof![3 => step().prop_map(|step| vec![step]), 1 => stream];
    prop::collection::vec(part, 0..8).prop_map(|parts| {
        let first = vec![Step::Open(1)];
        [first].into_iter().chain(parts).flatten().collect()
    })
}

#[test]
fn any_delta_makes_what_a_simple_program_makes_of_it() {
    let world = world();
    proptest!(ProptestConfig::with_cases(200), |(steps in steps(), piece in 1..70_000_usize)| {
        let delta = Cursor::new(world.delta(&steps));
        let images = Box::new(world.images.clone());
        let mut tar = PatchedTar::open(delta, Format::InflatedTarDiff, images, &Cancel::default()).unwrap();
        let (mut made, mut buffer) = (Vec::new(), vec![0; piece]);
        let ended = loop {
            match tar.read(&mut buffer) {
                Ok(0) => break true,
                Ok(read) => made.extend_from_slice(&buffer[..read]),
                Err(_) => break false,
            }
        };
        let expected = world.expected(&steps);
        prop_assert_eq!(ended, expected.is_some());
        if let Some(expected) = expected {
            prop_assert!(made == expected);
        }
    });
}

#[test]
fn no_operations_panic() {
    let world = world();
    proptest!(ProptestConfig::with_cases(500), |(bytes in prop::collection::vec(0..16_u8, 0..60))| {
        let _ = apply(Format::InflatedTarDiff, &packed(Format::InflatedTarDiff, &bytes), world.images.clone());
    });
}
