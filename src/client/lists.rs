//! Lists that are never whole in memory: one page after the other, each of them [bounded](super::pages).

use super::pages::MOST_OBJECTS;
use kube::Api;
use kube::api::{ListParams, ObjectList, ObjectMeta};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Where in a list the next page begins.
pub struct Pages(Option<ListParams>);

impl Pages {
    pub fn of(params: ListParams) -> Self {
        Self(Some(params.limit(MOST_OBJECTS)))
    }

    /// The objects of the next page; none after the last.
    pub async fn objects<K>(&mut self, api: &Api<K>) -> Result<Option<Vec<K>>, kube::Error>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let Some(params) = self.0.take() else { return Ok(None) };
        Ok(Some(self.turn(params.clone(), api.list(&params).await?)))
    }

    /// The metadata of the objects of the next page: it can be as large as the objects.
    pub async fn metadata<K>(&mut self, api: &Api<K>) -> Result<Option<Vec<ObjectMeta>>, kube::Error>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let Some(params) = self.0.take() else { return Ok(None) };
        let page = self.turn(params.clone(), api.list_metadata(&params).await?);
        Ok(Some(page.into_iter().map(|object| object.metadata).collect()))
    }

    fn turn<T: Clone>(&mut self, params: ListParams, page: ObjectList<T>) -> Vec<T> {
        let after = page.metadata.continue_.filter(|after| !after.is_empty());
        self.0 = after.map(|after| params.continue_token(&after));
        page.items
    }
}
