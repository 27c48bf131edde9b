//! Finds libqk.a (and libqk_io.a): with pkg-config, else in $QK_DIR, else by building the
//! repository that this crate is part of.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let io = env::var_os("CARGO_FEATURE_IO").is_some();
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-env-changed=QK_DIR");
    let why_not = match pkg_config(if io { "qk_io" } else { "qk" }) {
        Ok(words) => return link(&words),
        Err(why) => why,
    };
    let folder = match env::var_os("QK_DIR") {
        Some(folder) => library_folder(Path::new(&folder)).unwrap_or_else(|| {
            panic!("QK_DIR={}: no libqk.a in it nor in its lib folders", folder.to_string_lossy())
        }),
        None => build_repository(io, &why_not),
    };
    link_folder(&folder, io);
}

/// The words of `pkg-config --static --libs package`.
fn pkg_config(package: &str) -> Result<Vec<String>, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let version = format!("{package} >= {}", env!("CARGO_PKG_VERSION"));
    let output = Command::new(program)
        .args(["--static", "--print-errors", "--cflags-only-I", "--libs", &version])
        .output()
        .map_err(|error| format!("pkg-config did not run: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
    }
    Ok(words(&String::from_utf8_lossy(&output.stdout)))
}

/// Cuts at blanks that no backslash protects, as pkg-config writes paths with blanks.
fn words(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut word = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => word.extend(letters.next()),
            ' ' | '\n' | '\t' if word.is_empty() => {}
            ' ' | '\n' | '\t' => all.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    if !word.is_empty() {
        all.push(word);
    }
    all
}

/// Turns linker flags into cargo's. Our own archives are linked statically, whatever is beside
/// them; the others are the system's choice.
fn link(flags: &[String]) {
    let mut folders = Vec::new();
    for flag in flags {
        if let Some(folder) = flag.strip_prefix("-L") {
            folders.push(Path::new(folder));
            println!("cargo:rustc-link-search=native={folder}");
        } else if let Some(folder) = flag.strip_prefix("-I") {
            println!("cargo:include={folder}");
        } else if let Some(name) = flag.strip_prefix("-l") {
            // "-l:libqk.a" beside a shared libqk
            let file = name.strip_prefix(":lib").and_then(|file| file.strip_suffix(".a"));
            let name = file.unwrap_or(name);
            let kind = if matches!(name, "qk" | "qk_io") { "static" } else { "dylib" };
            println!("cargo:rustc-link-lib={kind}={name}");
            // A new library under an old name is linked again.
            let archives = folders.iter().map(|folder| folder.join(format!("lib{name}.a")));
            for archive in archives.filter(|archive| kind == "static" && archive.is_file()) {
                println!("cargo:rerun-if-changed={}", archive.display());
            }
        }
    }
}

fn link_folder(folder: &Path, io: bool) {
    let mut flags = vec![format!("-L{}", folder.display())];
    if io {
        flags.push("-lqk_io".to_string());
        flags.extend(pkg_config_of_jansson());
    }
    flags.extend(["-lqk", "-lpthread", "-lm"].map(String::from));
    link(&flags);
}

fn pkg_config_of_jansson() -> Vec<String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    match Command::new(program).args(["--libs", "jansson"]).output() {
        Ok(output) if output.status.success() => words(&String::from_utf8_lossy(&output.stdout)),
        _ => vec!["-ljansson".to_string()],
    }
}

/// Where libqk.a is in an installation's prefix or in a build folder.
fn library_folder(prefix: &Path) -> Option<PathBuf> {
    let triple = format!("lib/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").ok()?);
    ["", "lib", "lib64", &triple]
        .iter()
        .map(|folder| prefix.join(folder))
        .find(|folder| folder.join("libqk.a").is_file())
}

/// The vendored build: a release build without CUDA, tests, examples or the command.
fn build_repository(io: bool, why_not: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    if !root.join("include/qk.h").is_file() {
        panic!(
            "qk was not found. pkg-config says: {why_not}. QK_DIR is not set, and this crate is \
             not in qk's repository. Install qk and set PKG_CONFIG_PATH or QK_DIR."
        );
    }
    for watched in ["include", "src", "kernels", "cmake", "CMakeLists.txt"] {
        println!("cargo:rerun-if-changed={}", root.join(watched).display());
    }
    let build = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("qk");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&root).arg("-B").arg(&build).args([
        "-DCMAKE_BUILD_TYPE=Release",
        "-DQK_CUDA=OFF",
        "-DQK_BUILD_CLI=OFF",
        "-DQK_BUILD_EXAMPLES=OFF",
        "-DQK_BUILD_TESTS=OFF",
        if io { "-DQK_BUILD_IO=ON" } else { "-DQK_BUILD_IO=OFF" },
    ]);
    run(configure);
    let mut compile = Command::new("cmake");
    compile.arg("--build").arg(&build).arg("--parallel");
    compile.arg(env::var("NUM_JOBS").unwrap_or_else(|_| "1".to_string()));
    run(compile);
    build
}

fn run(mut command: Command) {
    let outcome = command.status();
    match outcome {
        Ok(status) if status.success() => {}
        other => panic!("{command:?}: {other:?}"),
    }
}
