//! A map whose clones share their values until one of them changes a value.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map;
use alloc::sync::Arc;
use core::ops::Index;

/// A map that is cheap to clone: a change copies the table and the changed value, if another map has
/// them too.
#[derive(Clone, Debug)]
pub(super) struct SharedMap<K, V>(Arc<BTreeMap<K, Arc<V>>>);

/// The entries of a map.
type Iter<'a, K, V> =
    core::iter::Map<btree_map::Iter<'a, K, Arc<V>>, fn((&'a K, &'a Arc<V>)) -> (&'a K, &'a V)>;

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains_key(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key).map(|value| &**value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.table_mut().get_mut(key).map(Arc::make_mut)
    }

    pub(super) fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        Entry(self.table_mut().entry(key))
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.table_mut().insert(key, Arc::new(value));
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<Arc<V>> {
        self.table_mut().remove(key)
    }

    fn table_mut(&mut self) -> &mut BTreeMap<K, Arc<V>> {
        Arc::make_mut(&mut self.0)
    }

    pub(super) fn iter(&self) -> Iter<'_, K, V> {
        self.0.iter().map(borrowed as fn(_) -> _)
    }

    pub(super) fn keys(&self) -> btree_map::Keys<'_, K, Arc<V>> {
        self.0.keys()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.values().map(|value| &**value)
    }
}

fn borrowed<'a, K, V>((key, value): (&'a K, &'a Arc<V>)) -> (&'a K, &'a V) {
    (key, value)
}

impl<K: Ord, V> Index<&K> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        &self.0[key]
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let table = entries.into_iter().map(|(key, value)| (key, Arc::new(value)));
        Self(Arc::new(table.collect()))
    }
}

/// A place in a map.
pub(super) struct Entry<'a, K, V>(btree_map::Entry<'a, K, Arc<V>>);

impl<'a, K: Ord, V: Clone + Default> Entry<'a, K, V> {
    pub(super) fn or_default(self) -> &'a mut V {
        Arc::make_mut(self.0.or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::SharedMap;
    use alloc::sync::Arc;

    /// A clone has the table and the values of its original, and a change concerns one of both.
    #[test]
    fn clones_share_what_neither_changes() {
        let original: SharedMap<u8, u8> = [(1, 10), (2, 20)].into_iter().collect();
        let mut clone = original.clone();
        assert!(Arc::ptr_eq(&original.0, &clone.0));
        *clone.get_mut(&1).unwrap() = 11;
        *clone.entry(3).or_default() = 30;
        assert_eq!(clone.get_mut(&4), None);
        assert!(Arc::ptr_eq(&original.0[&2], &clone.0[&2]));
        assert_eq!(clone.remove(&2).as_deref(), Some(&20));
        let entries = |map: &SharedMap<u8, u8>| map.iter().map(|(k, v)| (*k, *v)).collect();
        let [original, clone]: [alloc::vec::Vec<_>; 2] = [entries(&original), entries(&clone)];
        assert_eq!(original, [(1, 10), (2, 20)]);
        assert_eq!(clone, [(1, 11), (3, 30)]);
    }
}
