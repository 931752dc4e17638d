//! Parses OpenPGP keyrings and verifies signed messages, by the rules of the cluster-version operator or of GnuPG.
