//! Evaluates the signature policy (`policy.json`) of an image, with simple signing and sigstore signatures.
