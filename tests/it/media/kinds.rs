//! Pulls the same images from a medium of each kind: the stores are podman's, and no layer comes from the registry.

use super::kind::Holds;
use super::{Kind, Source};
use crate::needs::needs;

/// Formats, compressions, a list, and layers that images share.
const IMAGES: &str = "
    image site/plain docker
    layer gzip
    dir /etc 0755 0:0
    file /etc/motd 0644 0:0 \"welcome\"
    file /base 0644 0:0 random=300000 seed=1
    layer gzip
    file /program 0755 0:0 program=900000 seed=2
    layer gzip
    whiteout /etc/motd
    xattr user.color=blue

    image site/compressions oci
    layer gzip
    dir /etc 0755 0:0
    file /etc/motd 0644 0:0 \"welcome\"
    file /base 0644 0:0 random=300000 seed=1
    layer zstd
    file /zstd 0644 0:0 random=70000 seed=3

    image site/uncompressed oci
    layer gzip
    dir /etc 0755 0:0
    file /etc/motd 0644 0:0 \"welcome\"
    file /base 0644 0:0 random=300000 seed=1
    layer none
    file /none 0644 0:0 random=5000 seed=4

    image site/elsewhere docker arch=s390x
    layer gzip
    file /elsewhere 0644 0:0 random=4000 seed=5
    image site/here docker
    layer gzip
    dir /etc 0755 0:0
    file /etc/motd 0644 0:0 \"welcome\"
    file /base 0644 0:0 random=300000 seed=1
    layer gzip
    file /own 0644 0:0 random=4000 seed=6
    link /hard -> /own 0644 0:0
    symlink /soft -> etc/motd
    list site/list docker site/elsewhere site/here
";

/// Pulls from media of these kinds, each with a new node.
#[track_caller]
fn pulls_from(kinds: &[Kind]) {
    let source = Source::of(IMAGES);
    for kind in kinds {
        let mut names = source.names();
        names.retain(|name| kind.takes(name));
        let media = source.media(*kind, &names);
        let references: Vec<String> = names.iter().map(|name| source.reference(name)).collect();
        let run = source.pulls(&media, &references);
        let layers = source.requested_layers();
        match kind.holds() {
            Holds::Everything => {
                let requests: Vec<String> = source.registry.log().iter().map(ToString::to_string).collect();
                assert!(requests.is_empty(), "{kind:?}: {requests:#?}\n{run}");
            }
            Holds::CompressedLayers => {
                let uncompressed = &source.images.image("site/uncompressed").layers[1].digest;
                assert_eq!(layers, [uncompressed.as_str()], "{kind:?}: {run}");
            }
            Holds::Tars => assert!(layers.is_empty(), "{kind:?}: {layers:?}\n{run}"),
            Holds::OtherLayers => {}
            Holds::UpperLayers => {
                let base = &source.images.image("site/plain").layers[0].digest;
                assert_eq!(layers, [base.as_str()], "{kind:?}: {run}");
            }
        }
    }
}

#[test]
fn layouts_and_directories_of_skopeo_save_every_layer() {
    needs!(root(), stock());
    pulls_from(&[
        Kind::SkopeoOci,
        Kind::SkopeoOciArchive,
        Kind::OciTar,
        Kind::SkopeoDir,
    ]);
}

#[test]
fn media_with_other_compression_are_no_obstacle() {
    needs!(root(), stock());
    pulls_from(&[
        Kind::SkopeoDockerArchive,
        Kind::PodmanDockerArchive,
        Kind::PodmanDockerDir,
        Kind::PodmanOciArchive,
        Kind::PodmanOciDir,
    ]);
}

#[test]
fn storage_of_a_registry_saves_every_request() {
    needs!(root(), stock(), docker_registry());
    pulls_from(&[Kind::Registry, Kind::RegistryTar, Kind::OcImageMirror]);
}

#[test]
fn archives_and_the_cache_of_oc_mirror_save_every_request() {
    needs!(root(), stock(), docker_registry());
    pulls_from(&[Kind::OcMirror, Kind::OcMirrorCache]);
}

#[test]
fn spool_of_another_node_saves_the_layers_in_it() {
    needs!(root(), stock());
    pulls_from(&[Kind::Spool]);
}
