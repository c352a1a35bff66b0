//! Values on their way into a statement, and columns on their way out of a row.

use std::borrow::Cow;

use crate::store::StoreError;
#[cfg(feature = "postgres")]
use crate::store::postgres;

/// A value of a statement. An absent one keeps its type, which PostgreSQL asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'v> {
    /// 64 bits.
    Integer(Option<i64>),
    /// Unicode, compared by its bytes.
    Text(Option<Cow<'v, str>>),
    /// Bytes.
    Bytes(Option<Cow<'v, [u8]>>),
    /// A float of 64 bits: for ratios that people are shown, never for an amount.
    Real(Option<f64>),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(Some(number))
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(Some(i64::from(number)))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(number: Option<i64>) -> Self {
        Self::Integer(number)
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Self {
        Self::Text(Some(Cow::Borrowed(text)))
    }
}

impl<'v> From<&'v String> for Value<'v> {
    fn from(text: &'v String) -> Self {
        Self::Text(Some(Cow::Borrowed(text)))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(Some(Cow::Owned(text)))
    }
}

impl<'v> From<Option<&'v str>> for Value<'v> {
    fn from(text: Option<&'v str>) -> Self {
        Self::Text(text.map(Cow::Borrowed))
    }
}

impl<'v> From<Option<&'v String>> for Value<'v> {
    fn from(text: Option<&'v String>) -> Self {
        Self::Text(text.map(|text| Cow::Borrowed(text.as_str())))
    }
}

impl From<Option<String>> for Value<'_> {
    fn from(text: Option<String>) -> Self {
        Self::Text(text.map(Cow::Owned))
    }
}

impl<'v> From<&'v [u8]> for Value<'v> {
    fn from(bytes: &'v [u8]) -> Self {
        Self::Bytes(Some(Cow::Borrowed(bytes)))
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Real(Some(number))
    }
}

impl From<Option<f64>> for Value<'_> {
    fn from(number: Option<f64>) -> Self {
        Self::Real(number)
    }
}

#[cfg(feature = "sqlite")]
impl rusqlite::ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        use rusqlite::types::{ToSqlOutput, ValueRef};
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Integer(Some(number)) => ValueRef::Integer(*number),
            Self::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(Some(bytes)) => ValueRef::Blob(bytes),
            Self::Real(Some(number)) => ValueRef::Real(*number),
            Self::Integer(None) | Self::Text(None) | Self::Bytes(None) | Self::Real(None) => {
                ValueRef::Null
            }
        }))
    }
}

/// A row of a query.
#[derive(Debug)]
pub struct Row<'r>(RowOf<'r>);

enum RowOf<'r> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'r rusqlite::Row<'r>),
    #[cfg(feature = "postgres")]
    Postgres(&'r sqlx::postgres::PgRow),
}

impl std::fmt::Debug for RowOf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a row")
    }
}

impl<'r> Row<'r> {
    #[cfg(feature = "sqlite")]
    pub(super) const fn of_sqlite(row: &'r rusqlite::Row<'r>) -> Self {
        Self(RowOf::Sqlite(row))
    }

    #[cfg(feature = "postgres")]
    pub(crate) const fn of_postgres(row: &'r sqlx::postgres::PgRow) -> Self {
        Self(RowOf::Postgres(row))
    }

    /// The column at `index`, from 0. An error if it holds another type of value: the table is not what it was.
    pub fn get<T: Column>(&self, index: usize) -> Result<T, StoreError> {
        T::column(self, index)
    }

    /// The text at `index`.
    pub fn text(&self, index: usize) -> Result<&str, StoreError> {
        match self.0 {
            #[cfg(feature = "sqlite")]
            RowOf::Sqlite(row) => {
                let value = row.get_ref(index).map_err(super::table_error)?;
                value
                    .as_str()
                    .map_err(|error| super::table_error(error.into()))
            }
            #[cfg(feature = "postgres")]
            RowOf::Postgres(row) => postgres::plain(row, index),
        }
    }
}

/// What a column can be read as.
pub trait Column: Sized {
    /// Reads the column at `index` of `row`.
    fn column(row: &Row<'_>, index: usize) -> Result<Self, StoreError>;
}

macro_rules! plain {
    ($($column:ty, $of_postgres:ident);*) => {
        $(impl Column for $column {
            fn column(row: &Row<'_>, index: usize) -> Result<Self, StoreError> {
                match row.0 {
                    #[cfg(feature = "sqlite")]
                    RowOf::Sqlite(row) => row.get(index).map_err(super::table_error),
                    #[cfg(feature = "postgres")]
                    RowOf::Postgres(row) => postgres::$of_postgres(row, index),
                }
            }
        })*
    };
}

plain!(i64, integer; f64, plain; String, plain; Vec<u8>, plain);

impl Column for u32 {
    fn column(row: &Row<'_>, index: usize) -> Result<Self, StoreError> {
        let number: i64 = row.get(index)?;
        u32::try_from(number).map_err(|_| StoreError::Damaged {
            why: format!("Integer {number} out of range at index {index}"),
        })
    }
}

impl<T: Column> Column for Option<T> {
    fn column(row: &Row<'_>, index: usize) -> Result<Self, StoreError> {
        let is_absent = match row.0 {
            #[cfg(feature = "postgres")]
            RowOf::Postgres(row) => postgres::is_null(row, index)?,
            #[cfg(feature = "sqlite")]
            RowOf::Sqlite(row) => row
                .get_ref(index)
                .map_err(super::table_error)
                .map(|value| value == rusqlite::types::ValueRef::Null)?,
        };
        if is_absent {
            return Ok(None);
        }
        T::column(row, index).map(Some)
    }
}
