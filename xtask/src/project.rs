//! The workspace that contains this program.

use crate::command;
use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The workspace's metadata from cargo.
pub(crate) struct Project {
    metadata: Metadata,
    is_incremental: bool,
    upstream: Option<PathBuf>,
}

impl Project {
    /// Queries cargo about the workspace, without network access.
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec();
        let metadata = metadata.context("cargo metadata describes the workspace")?;
        Ok(Self { metadata, is_incremental: true, upstream: None })
    }

    /// Builds without incremental compilation: a build from scratch takes a tenth less.
    pub(crate) fn built_once(self) -> Self {
        Self { is_incremental: false, ..self }
    }

    /// Takes the folder of other projects' sources, whose tests are run.
    pub(crate) fn with_upstream(self, folder: Option<&Path>) -> Result<Self> {
        let absolute = |folder: &Path| {
            folder.canonicalize().with_context(|| format!("--upstream {}", folder.display()))
        };
        Ok(Self { upstream: folder.map(absolute).transpose()?, ..self })
    }

    /// The folder of other projects' sources.
    pub(crate) fn upstream(&self) -> Option<&Path> {
        self.upstream.as_deref()
    }

    /// The folder of the workspace's Cargo.toml.
    pub(crate) fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// Cargo's target folder.
    pub(crate) fn target(&self) -> &Path {
        self.metadata.target_directory.as_std_path()
    }

    /// Folder for logs and scratch files, inside cargo's target folder.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.metadata.target_directory.as_std_path().join("xtask")
    }

    /// `cargo` in the workspace's root.
    pub(crate) fn cargo(&self, words: &[&str]) -> Command {
        let mut cargo = command::cargo(self.root(), words.iter().copied());
        cargo.envs((!self.is_incremental).then_some(("CARGO_INCREMENTAL", "0")));
        cargo
    }

    /// Runs a command until `deadline` with its output in the log of that name, and returns the output.
    pub(crate) fn run(&self, command: Command, log: &str, deadline: Instant) -> Result<String> {
        command::run(command, &self.scratch().join(format!("{log}.log")), deadline)
    }

    /// The packages that can be published.
    pub(crate) fn published(&self) -> Vec<&str> {
        let packages = self.metadata.workspace_packages().into_iter();
        let published = packages.filter(|package| package.publish.as_ref() != Some(&Vec::new()));
        published.map(|package| package.name.as_str()).collect()
    }

    /// The version of the program.
    pub(crate) fn version(&self) -> Result<String> {
        let members = self.metadata.workspace_packages();
        let program = members.iter().find(|package| package.name == "handfast-cli");
        Ok(program.context("the workspace has no handfast-cli")?.version.to_string())
    }
}
