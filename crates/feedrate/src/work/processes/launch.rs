//! How a worker process is started.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use feedrate_shm::Channel;

use super::MARK;
use crate::error::Error;

/// What worker processes are to run: a recipe that [`Workers`](super::Workers) knows in the started program.
#[derive(Debug, Clone)]
pub struct Launch {
    pub(super) recipe: String,
    pub(super) argument: Vec<u8>,
    program: Option<OsString>,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
}

impl Launch {
    /// The recipe of this name, in the program that runs now.
    pub fn new(recipe: impl Into<String>) -> Self {
        Self {
            recipe: recipe.into(),
            argument: Vec::new(),
            program: None,
            args: Vec::new(),
            envs: Vec::new(),
        }
    }

    /// What the recipe is told; empty by default.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.argument = argument.into();
        self
    }

    /// Another program than the one that runs now.
    #[must_use]
    pub fn program(mut self, program: impl AsRef<OsStr>) -> Self {
        self.program = Some(program.as_ref().to_owned());
        self
    }

    /// One more command-line argument of the program; none by default.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// One more environment variable, besides those of this process.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Starts a process with the other end of the channel as its standard input: the one descriptor that can be handed over without
    /// making it inheritable for every child that other threads may be starting.
    pub(super) fn start(&self, channel: Channel) -> Result<Child, Error> {
        let (program, name) = if let Some(program) = &self.program {
            (program.as_os_str(), program.clone())
        } else {
            // The file itself: its name may be another one's by now, or nobody's.
            let name = std::env::current_exe();
            let name = name.map_err(|error| Error::system("finding the program that runs", error))?;
            (OsStr::new("/proc/self/exe"), name.into_os_string())
        };
        let socket = std::fs::File::from(channel.into_fd());
        let made = socket.metadata();
        let made = made.map_err(|error| Error::system("looking at a worker's channel", error))?;
        Command::new(program)
            .arg0(&name)
            .args(&self.args)
            .envs(self.envs.iter().map(|(name, value)| (name, value)))
            .env(MARK, format!("{} {}", std::process::id(), made.ino()))
            .stdin(Stdio::from(socket))
            .spawn()
            .map_err(|error| Error::system(format!("starting {} as a worker", name.display()), error))
    }
}
