//! Identifies the store that holds a record: the graph root or one of the additional image stores.

/// The store that holds the record of an image or a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StoreLocation {
    /// The graph root.
    #[default]
    GraphRoot,
    /// The additional image store with this index, in the order of the search.
    Additional(usize),
}
