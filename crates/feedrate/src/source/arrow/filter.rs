//! Which rows are wanted.

use std::fmt;

use arrow_array::{Array, RecordBatch};

use super::values::cell;
use crate::batch::Value;

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

impl Op {
    fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Self::Eq => order.is_eq(),
            Self::Ne => order.is_ne(),
            Self::Lt => order.is_lt(),
            Self::Le => order.is_le(),
            Self::Gt => order.is_gt(),
            Self::Ge => order.is_ge(),
        }
    }
}

/// A condition on rows, over columns that are not nested.
///
/// As in SQL: comparing with a null is unknown, `not` of unknown is unknown, and only rows for which the condition holds are kept. A NaN
/// equals nothing, itself included, and is neither less nor greater. Dates and times compare as the whole numbers that they are
/// stored as.
///
/// ```
/// use feedrate::source::{Filter, Op};
///
/// let filter = Filter::column("language", Op::Eq, "en").and(Filter::column("length", Op::Lt, 4096_i64));
/// assert_eq!(filter.to_string(), r#"(language = "en" and length < 4096)"#);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Filter {
    /// A column compared with a value: a bool, a number, a string or bytes.
    Compare {
        /// The column's name.
        column: String,
        /// How.
        op: Op,
        /// With what.
        value: Value,
    },
    /// The column equals one of these values.
    In {
        /// The column's name.
        column: String,
        /// The values.
        values: Vec<Value>,
    },
    /// The column is null.
    Null(String),
    /// All of these hold.
    All(Vec<Filter>),
    /// One of these holds.
    Any(Vec<Filter>),
    /// It does not hold.
    Not(Box<Filter>),
}

impl Filter {
    /// A column compared with a value.
    pub fn column(name: impl Into<String>, op: Op, value: impl Into<Value>) -> Self {
        Self::Compare {
            column: name.into(),
            op,
            value: value.into(),
        }
    }

    /// A column that equals one of the values; with none of them nothing does.
    pub fn one_of<V: Into<Value>>(name: impl Into<String>, values: impl IntoIterator<Item = V>) -> Self {
        Self::In {
            column: name.into(),
            values: values.into_iter().map(Into::into).collect(),
        }
    }

    /// Both hold.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::All(vec![self, other])
    }

    /// One of the two holds.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::Any(vec![self, other])
    }

    /// It does not hold.
    #[must_use]
    pub fn negate(self) -> Self {
        Self::Not(Box::new(self))
    }

    /// The columns that it asks for, each once.
    pub fn columns(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.collect(&mut names);
        names.sort_unstable();
        names.dedup();
        names
    }

    fn collect<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Self::Compare { column, .. } | Self::In { column, .. } | Self::Null(column) => names.push(column),
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.collect(names)),
            Self::Not(part) => part.collect(names),
        }
    }

    /// For each row: whether it holds, `None` where that is unknown. A column that is not there is an error, or if `lenient` null everywhere.
    pub(in crate::source) fn mask(&self, batch: &RecordBatch, lenient: bool) -> Result<Vec<Option<bool>>, String> {
        let find = |name: &str| match batch.column_by_name(name) {
            None if !lenient => Err(format!("there is no column {name:?} to filter by")),
            found => Ok(found),
        };
        match self {
            Self::Compare { column, op, value } => match find(column)? {
                Some(array) => compare(array.as_ref(), *op, value, column),
                None => Ok(vec![None; batch.num_rows()]),
            },
            Self::In { column, values } => match find(column)? {
                Some(array) => within(array.as_ref(), values, column),
                None => Ok(vec![None; batch.num_rows()]),
            },
            Self::Null(column) => match find(column)? {
                Some(array) => (0..array.len())
                    .map(|row| Ok(Some(matches!(cell(array.as_ref(), row)?, Value::None))))
                    .collect(),
                None => Ok(vec![Some(true); batch.num_rows()]),
            },
            Self::All(parts) => join(batch, parts, true, lenient),
            Self::Any(parts) => join(batch, parts, false, lenient),
            Self::Not(part) => {
                let held = part.mask(batch, lenient)?;
                Ok(held.into_iter().map(|holds| holds.map(|it| !it)).collect())
            }
        }
    }

    /// Whether rows may be wanted of a group for whose columns `range` knows the smallest and the largest value, the number of nulls
    /// and that of rows. `true` wherever that is not sure.
    #[cfg(feature = "parquet")]
    pub(in crate::source) fn possible(&self, range: &dyn Fn(&str) -> Range) -> bool {
        match self {
            Self::In { column, values } => values
                .iter()
                .any(|value| Self::column(column, Op::Eq, value.clone()).possible(range)),
            Self::Compare { column, op, value } => {
                let range = range(column);
                if range.nulls.is_some() && range.nulls == range.rows {
                    return false;
                }
                let least = range.least.as_ref().and_then(|least| order(least, value));
                let most = range.most.as_ref().and_then(|most| order(most, value));
                // Bounds may be those of other rows, so that a row equal to them need not be there.
                match op {
                    Op::Eq => least.is_none_or(std::cmp::Ordering::is_le) && most.is_none_or(std::cmp::Ordering::is_ge),
                    Op::Lt => least.is_none_or(std::cmp::Ordering::is_lt),
                    Op::Le => least.is_none_or(std::cmp::Ordering::is_le),
                    Op::Gt => most.is_none_or(std::cmp::Ordering::is_gt),
                    Op::Ge => most.is_none_or(std::cmp::Ordering::is_ge),
                    Op::Ne => true,
                }
            }
            Self::Null(column) => range(column).nulls != Some(0),
            Self::All(parts) => parts.iter().all(|part| part.possible(range)),
            Self::Any(parts) => parts.iter().any(|part| part.possible(range)),
            Self::Not(_) => true,
        }
    }
}

/// What is known of a column's values in a group of rows.
#[cfg(feature = "parquet")]
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::source) struct Range {
    pub(in crate::source) least: Option<Value>,
    pub(in crate::source) most: Option<Value>,
    pub(in crate::source) nulls: Option<u64>,
    pub(in crate::source) rows: Option<u64>,
}

fn join(batch: &RecordBatch, parts: &[Filter], all: bool, lenient: bool) -> Result<Vec<Option<bool>>, String> {
    let mut joined = vec![Some(all); batch.num_rows()];
    for part in parts {
        for (held, next) in joined.iter_mut().zip(part.mask(batch, lenient)?) {
            *held = match (*held, next) {
                (Some(one), _) | (_, Some(one)) if one != all => Some(!all),
                (Some(_), Some(_)) => Some(all),
                _ => None,
            };
        }
    }
    Ok(joined)
}

fn compare(array: &dyn Array, op: Op, value: &Value, column: &str) -> Result<Vec<Option<bool>>, String> {
    let mut holds = Vec::with_capacity(array.len());
    for row in 0..array.len() {
        let found = cell(array, row)?;
        holds.push(match (&found, value) {
            (Value::None, _) | (_, Value::None) => None,
            (Value::Float(x), Value::Float(_) | Value::Int(_)) if x.is_nan() => Some(op == Op::Ne),
            (Value::Float(_) | Value::Int(_), Value::Float(y)) if y.is_nan() => Some(op == Op::Ne),
            _ => {
                let order = order(&found, value).ok_or_else(|| unlike(column, &found, value))?;
                Some(op.holds(order))
            }
        });
    }
    Ok(holds)
}

fn within(array: &dyn Array, values: &[Value], column: &str) -> Result<Vec<Option<bool>>, String> {
    // Values of one kind have an order, NaN has none and equals nothing.
    let mut sorted: Vec<&Value> = values.iter().filter(|value| order(value, value).is_some()).collect();
    sorted.sort_by(|a, b| order(a, b).unwrap_or(std::cmp::Ordering::Equal));
    if let Some(other) = sorted.iter().find(|value| order(sorted[0], value).is_none()) {
        let (one, other) = (sorted[0].kind(), other.kind());
        return Err(format!("column {column:?} is compared with {one} and {other} at once"));
    }
    let mut holds = Vec::with_capacity(array.len());
    for row in 0..array.len() {
        let found = cell(array, row)?;
        holds.push(match (&found, sorted.first()) {
            (Value::None, _) => None,
            (Value::Float(x), _) if x.is_nan() => Some(false),
            (_, None) => Some(false),
            (_, Some(first)) if order(first, &found).is_none() => return Err(unlike(column, &found, first)),
            _ => {
                let held = sorted.binary_search_by(|value| order(value, &found).unwrap_or(std::cmp::Ordering::Less));
                Some(held.is_ok())
            }
        });
    }
    Ok(holds)
}

fn unlike(column: &str, found: &Value, value: &Value) -> String {
    format!(
        "column {column:?} has {}, and is compared with {}",
        found.kind(),
        value.kind()
    )
}

/// Of two values of one kind.
fn order(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Float(b)) => exact(*a, *b),
        (Value::Float(a), Value::Int(b)) => exact(*b, *a).map(std::cmp::Ordering::reverse),
        (Value::Str(a), Value::Str(b)) => Some(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// Without rounding: beyond 2^53 several whole numbers are the same float, and would equal one that differs from itself in the order.
fn exact(whole: i64, float: f64) -> Option<std::cmp::Ordering> {
    /// Above all whole numbers; its negative is the smallest one.
    const ABOVE: f64 = 9_223_372_036_854_775_808.0;
    match float {
        _ if float.is_nan() => None,
        ABOVE.. => Some(std::cmp::Ordering::Less),
        _ if float < -ABOVE => Some(std::cmp::Ordering::Greater),
        _ => {
            #[expect(clippy::cast_possible_truncation, reason = "it lies in the range")]
            let below = float.trunc() as i64;
            let rest = 0.0_f64.partial_cmp(&float.fract())?;
            Some(whole.cmp(&below).then(rest))
        }
    }
}

fn literal(f: &mut fmt::Formatter<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Bool(value) => write!(f, "{value}"),
        Value::Int(value) => write!(f, "{value}"),
        Value::Float(value) => write!(f, "{value:?}"),
        Value::Str(value) => write!(f, "{value:?}"),
        other => write!(f, "{other:?}"),
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, parts: &[Filter], word: &str| {
            f.write_str("(")?;
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    write!(f, " {word} ")?;
                }
                write!(f, "{part}")?;
            }
            f.write_str(")")
        };
        match self {
            Self::Compare { column, op, value } => {
                let op = match op {
                    Op::Eq => "=",
                    Op::Ne => "!=",
                    Op::Lt => "<",
                    Op::Le => "<=",
                    Op::Gt => ">",
                    Op::Ge => ">=",
                };
                write!(f, "{column} {op} ")?;
                literal(f, value)
            }
            Self::In { column, values } => {
                write!(f, "{column} in (")?;
                for (i, value) in values.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { "" })?;
                    literal(f, value)?;
                }
                f.write_str(")")
            }
            Self::Null(column) => write!(f, "{column} is null"),
            Self::All(parts) => joined(f, parts, "and"),
            Self::Any(parts) => joined(f, parts, "or"),
            Self::Not(part) => write!(f, "not {part}"),
        }
    }
}
