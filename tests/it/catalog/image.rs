//! Reads catalogs from the layers of index images in a store.

use spoke_precache::cancel::Cancel;
use spoke_precache::catalog::{self, CatalogLocation, PackageRequest};
use spoke_precache::oci::LayerId;

use super::{images, normalised};
use crate::image::Images;
use crate::needs::needs;
use crate::store::{put, resolved, store};
use crate::test_node::TestNode;

/// A package with one channel and one bundle, as one JSON text.
fn package(name: &str, version: u32) -> String {
    format!(
        r#"{{"schema":"olm.package","name":"{name}","defaultChannel":"c"}}
{{"schema":"olm.channel","package":"{name}","name":"c","entries":[{{"name":"{name}.v{version}"}}]}}
{{"schema":"olm.bundle","package":"{name}","name":"{name}.v{version}","image":"quay.io/{name}/bundle:{version}"}}"#
    )
}

/// A later layer replaces one file, removes another and replaces a directory; what it hides is broken or a duplicate.
#[test]
fn later_layers_win() {
    needs!(root());
    let (a1, a2, b1, c1, c2) = (
        package("a", 1),
        package("a", 2),
        package("b", 1),
        package("c", 1),
        package("c", 2),
    );
    let named: Vec<(&str, &[u8])> = vec![
        ("a1", a1.as_bytes()),
        ("a2", a2.as_bytes()),
        ("b1", b1.as_bytes()),
        ("c1", c1.as_bytes()),
        ("c2", c2.as_bytes()),
    ];
    let text = r#"image index oci
        layer gzip
        dir      /configs 0755 0:0
        file     /configs/a/catalog.json 0644 0:0 bytes=a1
        file     /configs/b/catalog.json 0644 0:0 bytes=b1
        file     /configs/c/old.json 0644 0:0 bytes=c1
        file     /configs/gone.json 0644 0:0 "{ broken"
        layer gzip
        file     /configs/a/catalog.json 0644 0:0 bytes=a2
        whiteout /configs/gone.json
        opaque   /configs/c
        file     /configs/c/new.json 0644 0:0 bytes=c2
        symlink  /catalog -> configs"#;
    let image = Images::of(text, &named).images.remove(0);
    let world = TestNode::trusting(&[]);
    let store = store(&world);
    put(&store, &image, None, "localhost/index:1");
    let chain: Vec<LayerId> = resolved(&image, None).layer_ids();
    let requests = PackageRequest::of_lines(["a:c", "b:", "c:"]).unwrap();
    let read = |layers: &[LayerId], label: &str| {
        let tree = store.tree(layers).unwrap();
        let labels = serde_json::json!({"operators.operatorframework.io.index.configs.v1": label});
        let config = serde_json::json!({"config": {"Labels": labels}}).to_string();
        let place = CatalogLocation::find(&tree, config.as_bytes()).unwrap();
        catalog::read(&tree, &place, &requests, &Cancel::default())
    };
    // The label may lead through a symlink.
    for label in ["/configs", "/catalog"] {
        let answers = read(&chain, label).unwrap().channels;
        let heads: Vec<_> = answers.into_iter().map(|answer| answer.head.unwrap()).collect();
        let bundles: Vec<&str> = heads.iter().map(|head| head.bundle.as_str()).collect();
        assert_eq!(bundles, ["a.v2", "b.v1", "c.v2"], "{label}");
        assert_eq!(images(&heads[2]), normalised(["quay.io/c/bundle:2"]));
    }
    let error = read(&chain[..1], "/configs").unwrap_err().to_string();
    assert!(
        error.starts_with("`/configs/gone.json` of the catalog, line 1"),
        "{error}"
    );
}
