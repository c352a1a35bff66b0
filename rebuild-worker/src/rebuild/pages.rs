//! A long table in the order of its keys, a page at a time.
//!
//! Each page is a query of its own that begins behind the last key of the page before, by an index in the order of the keys. In one snapshot the pages
//! together are what one long query would give; but between two of them the connection is free for other statements, of which PostgreSQL
//! answers one at a time. Bound: [`PAGE_ROWS`] rows in memory.

use recoup::store::StoreError;

/// How many rows a page has.
pub(crate) const PAGE_ROWS: usize = 2_000;

/// Gives at most [`PAGE_ROWS`] rows behind a key; the first ones of all behind none.
type Fetch<'a, K, V> = Box<dyn FnMut(Option<&K>) -> Result<Vec<(K, V)>, StoreError> + 'a>;

pub(crate) struct Pages<'a, K, V> {
    fetch: Fetch<'a, K, V>,
    page: std::vec::IntoIter<(K, V)>,
    /// The last key that was fetched.
    last: Option<K>,
    /// Behind this page there is none.
    is_last: bool,
}

impl<'a, K: Clone, V> Pages<'a, K, V> {
    pub(crate) fn of(
        fetch: impl FnMut(Option<&K>) -> Result<Vec<(K, V)>, StoreError> + 'a,
    ) -> Self {
        Self {
            fetch: Box::new(fetch),
            page: Vec::new().into_iter(),
            last: None,
            is_last: false,
        }
    }

    /// The next row, which stays the next one.
    pub(crate) fn peek(&mut self) -> Result<Option<&(K, V)>, StoreError> {
        if self.page.as_slice().is_empty() && !self.is_last {
            let page = (self.fetch)(self.last.as_ref())?;
            self.is_last = page.len() < PAGE_ROWS;
            self.last = page.last().map(|(key, _)| key.clone());
            self.page = page.into_iter();
        }
        Ok(self.page.as_slice().first())
    }

    /// The next row.
    pub(crate) fn next(&mut self) -> Result<Option<(K, V)>, StoreError> {
        self.peek()?;
        Ok(self.page.next())
    }

    /// The next row, if its key is one of these.
    pub(crate) fn next_if(
        &mut self,
        is_wanted: impl FnOnce(&K) -> bool,
    ) -> Result<Option<(K, V)>, StoreError> {
        match self.peek()? {
            Some((key, _)) if is_wanted(key) => self.next(),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where the rows fill their last page.
    #[test]
    fn pages_give_every_row_once() {
        for rows in [0, 1, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 2 * PAGE_ROWS] {
            let mut queries = 0;
            let mut pages = Pages::of(|after: Option<&usize>| {
                queries += 1;
                let from = after.map_or(0, |after| after + 1);
                let to = rows.min(from + PAGE_ROWS);
                Ok((from..to).map(|row| (row, ())).collect())
            });
            let mut seen = Vec::new();
            while let Some((row, ())) = pages.next().expect("nothing fails") {
                seen.push(row);
            }
            assert!(pages.peek().expect("nothing fails").is_none());
            drop(pages);
            assert_eq!(seen, (0..rows).collect::<Vec<_>>());
            assert_eq!(queries, rows / PAGE_ROWS + 1);
        }
    }
}
