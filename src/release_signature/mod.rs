//! Verifies the signature of a release, as the cluster-version operator does.
