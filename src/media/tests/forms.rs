//! Every form of a medium is recognised by its content.

use std::os::unix::fs::symlink;

use super::*;

#[test]
fn an_image_is_found_in_every_form_as_directory_and_as_tar() {
    let image = Image::new();
    let root = "docker/registry/v2/";
    let with_host = image.registry(root, REPOSITORY);
    let of_oc_mirror = image.registry(root, "openshift/base");
    let (own, manifest) = (image.blob().hex(), image.manifest.clone());
    let dir = vec![
        (
            "version".to_owned(),
            b"Directory Transport Version: 1.1\n".to_vec(),
        ),
        ("manifest.json".to_owned(), manifest.bytes().to_vec()),
        (image.config.digest().hex(), image.config.bytes().to_vec()),
        (own, image.layer.clone()),
    ];
    let instance = vec![
        (
            "manifest.json".to_owned(),
            br#"{"schemaVersion":2,"manifests":[]}"#.to_vec(),
        ),
        (
            format!("{}.manifest.json", manifest.digest().hex()),
            manifest.bytes().to_vec(),
        ),
        dir[2].clone(),
        dir[3].clone(),
    ];
    let forms: [(&str, Files, bool); 11] = [
        ("OCI layout", image.oci_layout(), true),
        ("registry", with_host, true),
        ("oc-mirror's cache", of_oc_mirror, true),
        (
            "registry at `docker`",
            image.registry("registry/v2/", REPOSITORY),
            true,
        ),
        ("registry at `registry`", image.registry("v2/", REPOSITORY), true),
        ("registry at `v2`", image.registry("", REPOSITORY), true),
        (
            "oc-mirror's directory",
            image.registry(".cache/docker/registry/v2/", REPOSITORY),
            true,
        ),
        ("dir:", dir, false),
        ("dir: of an index", instance, false),
        (
            "oc image mirror",
            image.files(|digest| format!("v2/openshift/base/blobs/{digest}")),
            false,
        ),
        ("spool", image.files(Digest::to_string), false),
    ];
    for (form, files, has_tag) in forms {
        let directory = in_directory(&files);
        let archive = in_file("stick.tar", &tar(&files));
        for media in [opened(directory.path()), opened(archive.path().join("stick.tar"))] {
            assert_complete(&media, &image, form);
            let tagged = has_tag.then(|| manifest.digest());
            assert_eq!(media.tagged(REPOSITORY, "4.16"), tagged, "{form}");
            assert_eq!(media.tagged(REPOSITORY, "4.17"), None, "{form}");
        }
    }
}

#[test]
fn a_docker_archive_has_configs_and_layer_tars_but_no_manifests() {
    let image = Image::new();
    let files = image.docker_archive();
    let directory = in_directory(&files);
    let archive = in_file("saved.tar", &tar(&files));
    for media in [opened(directory.path()), opened(archive.path().join("saved.tar"))] {
        assert_eq!(
            media.content(image.config.digest(), LIMIT).as_ref(),
            Some(&image.config)
        );
        assert_eq!(media.content(image.manifest.digest(), LIMIT), None);
        let tars = media.layer_tars(image.diff_id());
        let mut bytes = Vec::new();
        tars[0].open().unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes == image.layer);
    }
}

#[test]
fn a_layer_that_images_of_a_docker_archive_share_is_found_behind_its_link() {
    let image = Image::new();
    let mut files = image.docker_archive();
    let layer = files.remove(0);
    let mut bytes = entry(EntryBuilder::new_gnu(), "base/layer.tar", &layer.1);
    let mut link = EntryBuilder::new_gnu();
    link.path(&layer.0).link_name("./base/../base/layer.tar");
    link.size(0).unwrap().entry_type(tar_core::EntryType::Symlink);
    bytes.extend(link.finish_bytes());
    bytes.extend(tar(&files));
    let archive = in_file("saved.tar", &bytes);
    let media = opened(archive.path().join("saved.tar"));
    assert_eq!(
        media.layer_tars(image.diff_id())[0].size(),
        image.layer.len() as u64
    );
}

#[test]
fn tags_of_oc_image_mirror_are_links_and_of_referrers_belong_to_every_repository() {
    let image = Image::new();
    let directory = in_directory(&image.files(|digest| format!("v2/openshift/base/blobs/{digest}")));
    let manifests = directory.path().join("v2/openshift/base/manifests");
    let digest = image.manifest.digest();
    fs::create_dir(&manifests).unwrap();
    fs::hard_link(
        directory.path().join(format!("v2/openshift/base/blobs/{digest}")),
        manifests.join(digest.to_string()),
    )
    .unwrap();
    let attachment = format!("sha256-{}.sig", Digest::of(b"image").hex());
    for tag in ["4.16", attachment.as_str()] {
        symlink(digest.to_string(), manifests.join(tag)).unwrap();
    }
    let media = opened(directory.path());
    assert_eq!(media.tagged(REPOSITORY, "4.16"), Some(digest));
    assert_eq!(media.tagged("quay.io/other/name", "4.16"), None);
    assert_eq!(media.tagged("quay.io/other/name", &attachment), Some(digest));
}

#[test]
fn parts_of_an_oc_mirror_archive_are_one_medium_and_a_missing_one_is_named() {
    let image = Image::new();
    let files = image.registry("docker/registry/v2/", "openshift/release-images");
    let directory = tempfile::tempdir().unwrap();
    for (number, part) in [1, 2, 4].into_iter().zip(files.chunks(2)) {
        let name = format!("mirror_{number:06}.tar");
        fs::write(directory.path().join(name), tar(&part.to_vec())).unwrap();
    }
    fs::create_dir(directory.path().join("working-dir")).unwrap();
    let (media, warnings) = open(directory.path()).unwrap();
    let shown = directory.path().display();
    assert_eq!(
        warnings,
        [format!("medium `{shown}`: `mirror_000003.tar` is missing")]
    );
    assert_complete(&media, &image, "parts");

    let one = opened(directory.path().join("mirror_000001.tar"));
    assert_eq!(one.content(image.manifest.digest(), LIMIT), Some(image.manifest));
    assert_eq!(
        one.size_of(image.config.digest()),
        Some(image.config.bytes().len() as u64)
    );
    assert_eq!(one.blobs(Digest::of(&image.layer)).len(), 0);
}

#[test]
fn a_directory_around_a_layout_in_a_tar_and_media_in_a_directory_are_found() {
    let image = Image::new();
    let below = |directory: &str| -> Files {
        let files = image.oci_layout().into_iter();
        files
            .map(|(path, bytes)| (format!("./{directory}/{path}"), bytes))
            .collect()
    };
    let media = in_file("layout.tar", &tar(&below("layout")));
    fs::write(media.path().join("README"), "see the ticket").unwrap();
    assert_complete(&opened(media.path().join("layout.tar")), &image, "tar");
    assert_complete(&opened(media.path()), &image, "directory with a tar");

    write(media.path(), &below("stick"));
    let both = opened(media.path());
    let names: Vec<String> = both
        .blobs(image.blob())
        .iter()
        .map(|blob| blob.name().to_owned())
        .collect();
    let expected = ["layout.tar", "stick"].map(|name| media.path().join(name).display().to_string());
    assert_eq!(names, expected);
}

#[test]
fn only_the_complete_blobs_of_another_spool_are_found() {
    let image = Image::new();
    let mut files = image.files(Digest::to_string);
    let partial = files.pop().unwrap();
    files.push((format!("{}.partial", partial.0), partial.1));
    files.push(("lock".to_owned(), Vec::new()));
    let spool = in_directory(&files);
    let media = opened(spool.path());
    assert_eq!(
        media.content(image.config.digest(), LIMIT).as_ref(),
        Some(&image.config)
    );
    assert_eq!(media.size_of(image.blob()), None);
}
