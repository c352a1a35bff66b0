//! The parameters of a connection string: what stands behind its `?`.

/// Gives the parameters in order, by the names in `known`, whatever case they are written in.
///
/// One that is not known, stands twice, or has no value is refused: a mistyped name must not leave a default in force.
pub(crate) fn parameters<'a>(
    query: &'a str,
    known: &[&'static str],
) -> Result<Vec<(&'static str, &'a str)>, String> {
    let mut found: Vec<(&'static str, &str)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        // The value may be a password.
        let Some((written, value)) = pair.split_once('=') else {
            return Err("a parameter has no value".to_owned());
        };
        let name = known.iter().find(|name| name.eq_ignore_ascii_case(written));
        let Some(name) = name else {
            return Err(format!("there is no parameter {written:?}"));
        };
        if found.iter().any(|(before, _)| before == name) {
            return Err(format!("the parameter {name} is given twice"));
        }
        found.push((name, value));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_parameter_is_no_default() {
        let known = ["schema", "tls"];
        let given = parameters("Schema=a&&TLS=", &known);
        assert_eq!(given, Ok(vec![("schema", "a"), ("tls", "")]));
        for (query, why) in [
            ("schemas=a", "there is no parameter \"schemas\""),
            ("schema=a&Schema=b", "the parameter schema is given twice"),
            ("schema=a&secret", "a parameter has no value"),
        ] {
            assert_eq!(parameters(query, &known), Err(why.to_owned()), "{query}");
        }
    }
}
