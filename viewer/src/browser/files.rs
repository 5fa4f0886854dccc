//! Files that were picked or dropped, with their paths.

use js_sys::{Array, Function, Promise, Reflect};
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    DataTransfer, File, FileSystemDirectoryEntry, FileSystemEntry, FileSystemFileEntry, HtmlInputElement,
};

use crate::uploads::{MAX_ROWS, may_be_snapshot};

/// A file that was picked or dropped.
#[derive(Debug, Clone)]
pub(crate) struct Picked {
    /// Its path from the folder that was picked on; its name when it was picked by itself.
    pub(crate) path: String,
    /// The folder that was picked.
    pub(crate) folder: Option<String>,
    /// Its bytes.
    pub(crate) file: File,
}

impl Picked {
    fn alone(file: File) -> Self {
        Self { path: file.name(), folder: None, file }
    }

    fn in_folder(path: &str, file: File) -> Self {
        let path = path.trim_start_matches('/').to_owned();
        let folder = path.split_once('/').map(|(folder, _)| folder.to_owned());
        Self { path, folder, file }
    }
}

/// True when a drag carries files (and not, say, a link of the page itself).
pub(crate) fn holds_files(transfer: &DataTransfer) -> bool {
    transfer.types().iter().any(|kind| kind.as_string().as_deref() == Some("Files"))
}

/// What was picked with a file input. Of a folder, only what may be a snapshot.
pub(crate) fn from_input(input: &HtmlInputElement) -> Vec<Picked> {
    let Some(list) = input.files() else { return Vec::new() };
    let files = (0..list.length()).filter_map(|i| list.get(i));
    let picked = files.map(|file| match relative_path(&file) {
        Some(path) => Picked::in_folder(&path, file),
        None => Picked::alone(file),
    });
    picked.filter(|picked| picked.folder.is_none() || may_be_snapshot(&picked.path)).take(MAX_ROWS).collect()
}

/// `webkitRelativePath`: set when a folder was picked.
fn relative_path(file: &File) -> Option<String> {
    let path = Reflect::get(file, &JsValue::from_str("webkitRelativePath")).ok()?.as_string()?;
    Some(path).filter(|path| !path.is_empty())
}

/// What was dropped: files, and the files of folders in no deeper than [`MAX_DEPTH`].
///
/// The entries are taken from the transfer before the first wait: afterwards it is empty.
pub(crate) fn from_drop(transfer: &DataTransfer) -> impl Future<Output = Vec<Picked>> + use<> {
    let items = transfer.items();
    let mut picked = Vec::new();
    let mut folders = Vec::new();
    for item in (0..items.length()).filter_map(|i| items.get(i)) {
        match item.webkit_get_as_entry().ok().flatten() {
            Some(entry) if entry.is_directory() => folders.push(entry),
            _ => picked.extend(item.get_as_file().ok().flatten().map(Picked::alone)),
        }
    }
    async move {
        for folder in folders {
            collect(folder, &mut picked).await;
        }
        picked.truncate(MAX_ROWS);
        picked
    }
}

/// Folders inside folders that are looked into; deeper ones are passed over.
const MAX_DEPTH: usize = 16;

async fn collect(folder: FileSystemEntry, picked: &mut Vec<Picked>) {
    let mut waiting = vec![(folder, 0)];
    while let Some((entry, depth)) = waiting.pop() {
        if picked.len() >= MAX_ROWS {
            return;
        }
        if entry.is_directory() {
            if depth < MAX_DEPTH {
                let children = children(entry.unchecked_into()).await;
                waiting.extend(children.into_iter().map(|child| (child, depth + 1)));
            }
        } else if may_be_snapshot(&entry.name()) {
            let path = entry.full_path();
            let file = file(entry.unchecked_into()).await;
            picked.extend(file.map(|file| Picked::in_folder(&path, file)));
        }
    }
    picked.sort_by(|a, b| a.path.cmp(&b.path));
}

/// The entries of a folder; a browser hands them out by the hundred.
async fn children(folder: FileSystemDirectoryEntry) -> Vec<FileSystemEntry> {
    let reader = folder.create_reader();
    let mut all = Vec::new();
    while all.len() < MAX_ROWS {
        let batch = answered(|ok, failed| {
            reader.read_entries_with_callback_and_callback(ok, failed).ok();
        });
        let Some(batch) = batch.await.and_then(|batch| batch.dyn_into::<Array>().ok()) else { break };
        if batch.length() == 0 {
            break;
        }
        all.extend(batch.iter().map(|entry| entry.unchecked_into::<FileSystemEntry>()));
    }
    all
}

async fn file(entry: FileSystemFileEntry) -> Option<File> {
    let file = answered(|ok, failed| {
        entry.file_with_callback_and_callback(ok, failed);
    });
    file.await.and_then(|file| file.dyn_into().ok())
}

/// What a function answers by calling the first of two callbacks; none when it calls the second.
async fn answered(mut ask: impl FnMut(&Function, &Function)) -> Option<JsValue> {
    let promise = Promise::new(&mut |ok, failed| ask(&ok, &failed));
    JsFuture::from(promise).await.ok()
}
