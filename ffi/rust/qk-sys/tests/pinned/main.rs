//! tests/abi/layout.json, the pinned interface, against these declarations as rustc lays them out:
//! every constant, every struct's size and every field's offset and size, and the address of every
//! function, so that each is linked. What the file has and this list has not fails too.
use std::collections::BTreeMap;
use std::mem::size_of;

use qk_sys::*;

/// (name, value): "constant QK_OK", "bytes qk_gru_quant", "offset qk_gru_quant.bits", ...
type Facts = BTreeMap<String, i64>;

macro_rules! pinned {
    ($facts:ident, constants { $($constant:ident),* $(,)? }
     functions { $($function:ident),* $(,)? }
     $(struct $name:ident { $($field:ident),* $(,)? })*) => {
        $($facts.insert(format!("constant {}", stringify!($constant)), i64::from($constant));)*
        $(assert_ne!($function as *const () as usize, 0);
          $facts.insert(format!("function {}", stringify!($function)), 0);)*
        $({
            // All of these are made of integers and of pointers that may be null.
            let sample: $name = unsafe { std::mem::zeroed() };
            let start = &sample as *const $name as usize;
            $facts.insert(format!("bytes {}", stringify!($name)), size_of::<$name>() as i64);
            $(
                let field = concat!(stringify!($name), ".", stringify!($field));
                let offset = std::ptr::addr_of!(sample.$field) as usize - start;
                let bytes = std::mem::size_of_val(&sample.$field);
                $facts.insert(format!("offset {field}"), offset as i64);
                $facts.insert(format!("bytes {field}"), bytes as i64);
            )*
        })*
    };
}

include!("lists.rs");

/// The text behind `"key":` up to the bracket that closes it; layout.json has no bracket or escaped
/// quote in a string but the ones of types, which come in pairs.
fn section<'a>(text: &'a str, key: &str) -> &'a str {
    let start = text.find(&format!("\"{key}\": {{")).expect(key) + key.len() + 4;
    let mut depth = 0;
    for (at, letter) in text[start..].char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[start..=start + at];
        }
    }
    panic!("{key} is never closed");
}

/// "name": 12 -> ("name", 12)
fn entry(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().trim_end_matches(',').split_once(": ")?;
    Some((name.trim_matches('"'), value))
}

/// The number behind `"key": `.
fn number(text: &str, key: &str) -> i64 {
    let start = text.find(&format!("\"{key}\": ")).expect(text) + key.len() + 4;
    let digits: String = text[start..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect(text)
}

fn pinned_facts(text: &str) -> Facts {
    let mut facts = Facts::new();
    for (name, value) in section(text, "constants").lines().filter_map(entry) {
        facts.insert(format!("constant {name}"), value.parse().expect(name));
    }
    for (name, _) in section(text, "functions").lines().filter_map(entry) {
        facts.insert(format!("function {name}"), 0);
    }
    let mut name = "";
    for line in section(text, "structs").lines() {
        match entry(line) {
            Some((found, "{")) if found != "fields" => name = found,
            Some((field, rest)) if rest.starts_with("{\"offset\"") => {
                facts.insert(format!("offset {name}.{field}"), number(rest, "offset"));
                facts.insert(format!("bytes {name}.{field}"), number(rest, "bytes"));
            }
            Some(("bytes", bytes)) => {
                facts.insert(format!("bytes {name}"), bytes.parse().expect(name));
            }
            _ => {}
        }
    }
    facts
}

#[test]
#[cfg(feature = "io")]
fn declarations_are_as_pinned() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/abi/layout.json");
    let text = std::fs::read_to_string(path).expect(path);
    if number(&text, "pointer_bytes") != size_of::<usize>() as i64 {
        println!("skipped: layout.json was measured on a machine of another pointer size");
        return;
    }
    let pinned = pinned_facts(&text);
    assert!(pinned.len() > 350, "only {} facts were understood", pinned.len());
    let mut here = Facts::new();
    core_facts(&mut here);
    io_facts(&mut here);
    for (fact, value) in &pinned {
        assert_eq!(here.get(fact), Some(value), "layout.json: {fact}");
    }
    for fact in here.keys() {
        assert!(pinned.contains_key(fact), "{fact} is not in layout.json");
    }
}

#[test]
fn the_library_is_of_this_version() {
    let declared = QK_VERSION_MAJOR * 10000 + QK_VERSION_MINOR * 100 + QK_VERSION_PATCH;
    assert_eq!(unsafe { qk_version() }, declared as u32);
    let mut facts = Facts::new();
    core_facts(&mut facts);
    assert!(!facts.is_empty());
}
