//! The worker of the dashboard: opens snapshots and draws them, off the page's own thread.
//!
//! `static/worker.js` takes the page's messages and calls [`Engine`]; what it answers is computed by
//! [`document::Document`], which knows no browser. Questions and answers are those of `tidegauge_api::picture`,
//! as JSON; pixels and ids travel as typed arrays.

pub mod document;

use std::io;

use document::Document;
use js_sys::{Float64Array, Function, Uint8Array, Uint8ClampedArray, Uint32Array};
use tidegauge_api::memory::Block;
use tidegauge_api::picture::{ArchiveListing, ArchiveMember};
use tidegauge_snapshot::pack;
use tidegauge_snapshot::read::{self, archive};
use wasm_bindgen::prelude::*;

/// One open snapshot, or none.
#[wasm_bindgen]
#[derive(Default)]
pub struct Engine {
    document: Option<Document>,
    header: Option<pack::Header>,
    raster: Option<tidegauge_snapshot::picture::Raster>,
    /// Of the latest answer about memory.
    blocks: Vec<Block>,
}

/// Bytes asked of a dropped file at a time.
const SLICE_BYTES: f64 = 4.0 * 1024.0 * 1024.0;

/// A dropped file, read slice by slice through a synchronous function of the worker's.
struct SlicedFile<'a> {
    read: &'a Function,
    size: f64,
    /// Where in the file the slice ends.
    offset: f64,
    slice: Vec<u8>,
    at: usize,
}

impl<'a> SlicedFile<'a> {
    fn new(size: f64, read: &'a Function) -> Self {
        Self { read, size, offset: 0.0, slice: Vec::new(), at: 0 }
    }
}

impl io::Read for SlicedFile<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.slice.len() && self.offset < self.size {
            let len = SLICE_BYTES.min(self.size - self.offset);
            let slice = self
                .read
                .call2(&JsValue::NULL, &self.offset.into(), &len.into())
                .map_err(|error| io::Error::new(io::ErrorKind::NotFound, text_of(&error)))?;
            self.slice = Uint8Array::new(&slice).to_vec();
            self.offset += len;
            self.at = 0;
        }
        let n = buf.len().min(self.slice.len() - self.at);
        buf[..n].copy_from_slice(&self.slice[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

impl io::Seek for SlicedFile<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        // A file of a browser has a size that a float holds exactly.
        let here = self.offset as u64 - (self.slice.len() - self.at) as u64;
        let to = match to {
            io::SeekFrom::Start(to) => Some(to),
            io::SeekFrom::Current(by) => here.checked_add_signed(by),
            io::SeekFrom::End(by) => (self.size as u64).checked_add_signed(by),
        };
        let to = to.ok_or(io::ErrorKind::InvalidInput)?;
        let begin = self.offset as u64 - self.slice.len() as u64;
        match to
            .checked_sub(begin)
            .and_then(|at| usize::try_from(at).ok())
            .filter(|at| *at <= self.slice.len())
        {
            // Most jumps lead a few bytes on, or nowhere.
            Some(at) => self.at = at,
            None => {
                self.slice.clear();
                (self.offset, self.at) = (to as f64, 0);
            }
        }
        Ok(to)
    }
}

fn text_of(error: &JsValue) -> String {
    error.as_string().or_else(|| js_sys::Error::from(error.clone()).message().as_string()).unwrap_or_default()
}

fn sentence(error: impl std::fmt::Display) -> JsValue {
    JsValue::from_str(&error.to_string())
}

#[wasm_bindgen]
impl Engine {
    /// An engine with nothing open.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a file of `size` bytes through `read(offset, length) -> Uint8Array`; of an archive, the snapshot at
    /// the path `member`. Answers `Opened` as JSON.
    ///
    /// # Errors
    /// The reader's sentence.
    pub fn open_file(
        &mut self,
        name: &str,
        size: f64,
        read: &Function,
        member: Option<String>,
    ) -> Result<String, JsValue> {
        self.close();
        let file = SlicedFile::new(size, read);
        let opened = match &member {
            Some(member) => archive::open_member(file, member),
            None => read::open_file(file),
        };
        let snapshot = opened.map_err(sentence)?;
        let document = Document::new(snapshot, None, member.as_deref().unwrap_or(name), size as u64);
        self.keep(document)
    }

    /// The snapshots of an archive of `size` bytes: `ArchiveListing` as JSON, or `undefined` when it is none.
    ///
    /// # Errors
    /// The reader's sentence.
    pub fn list_archive(&self, size: f64, read: &Function) -> Result<Option<String>, JsValue> {
        let Some(listing) = archive::list(SlicedFile::new(size, read)).map_err(sentence)? else {
            return Ok(None);
        };
        let listing = ArchiveListing {
            snapshots: listing
                .snapshots
                .into_iter()
                .map(|member| ArchiveMember { path: member.path, bytes: member.bytes })
                .collect(),
            n_others: listing.n_others,
        };
        serde_json::to_string(&listing).map(Some).map_err(sentence)
    }

    /// Reads the directory of a pack: how many bytes a first picture needs, and how many there are. `undefined`
    /// when more of the beginning is needed.
    ///
    /// # Errors
    /// A sentence when it is no pack.
    pub fn pack_header(&mut self, beginning: &[u8]) -> Result<Option<Vec<f64>>, JsValue> {
        self.close();
        self.header = pack::header(beginning).map_err(sentence)?;
        Ok(self.header.as_ref().map(|header| vec![header.first_bytes as f64, header.total_bytes as f64]))
    }

    /// Opens a pack from the bytes a first picture needs. Answers `Opened` as JSON.
    ///
    /// # Errors
    /// A sentence when they are damaged.
    pub fn open_pack(&mut self, name: &str, size: f64, first: &[u8]) -> Result<String, JsValue> {
        let header = self.header.as_ref().ok_or_else(|| sentence("the pack's directory was not read yet"))?;
        let (snapshot, palette) = pack::read_first(header, first).map_err(sentence)?;
        let document = Document::new(snapshot, Some(palette), name, size as u64);
        self.keep(document)
    }

    /// Adds what follows the first part of a pack: texts and stacks.
    ///
    /// # Errors
    /// A sentence when it is damaged.
    pub fn add_stacks(&mut self, rest: &[u8]) -> Result<(), JsValue> {
        match (&mut self.document, &self.header) {
            (Some(document), Some(header)) => document.add_stacks(header, rest).map_err(sentence),
            _ => Err(sentence("no pack is open")),
        }
    }

    /// Draws: `PictureQuestion` to `PictureAnswer`, as JSON. The pixels are then in [`Self::pixels`] and
    /// [`Self::ids`].
    ///
    /// # Errors
    /// A sentence when nothing is open, or the device has nothing.
    pub fn picture(&mut self, question: &str) -> Result<String, JsValue> {
        let question = serde_json::from_str(question).map_err(sentence)?;
        let (answer, raster) = self.open()?.picture(&question).map_err(sentence)?;
        self.raster = Some(raster);
        serde_json::to_string(&answer).map_err(sentence)
    }

    /// The pixels of the latest picture, RGBA.
    pub fn pixels(&self) -> Uint8ClampedArray {
        Uint8ClampedArray::from(self.raster.as_ref().map_or(&[][..], |raster| &raster.rgba))
    }

    /// The allocation that each pixel of the latest picture shows.
    pub fn ids(&self) -> Uint32Array {
        Uint32Array::from(self.raster.as_ref().map_or(&[][..], |raster| &raster.ids))
    }

    /// `LevelsQuestion` to `LevelsAnswer`, as JSON.
    ///
    /// # Errors
    /// A sentence when nothing is open, or the device has nothing.
    pub fn levels(&self, question: &str) -> Result<String, JsValue> {
        let question = serde_json::from_str(question).map_err(sentence)?;
        serde_json::to_string(&self.open()?.levels(&question).map_err(sentence)?).map_err(sentence)
    }

    /// `AllocationQuestion` to `AllocationAnswer`, as JSON.
    ///
    /// # Errors
    /// A sentence when nothing is open, or there is no such allocation.
    pub fn allocation(&self, question: &str) -> Result<String, JsValue> {
        let question = serde_json::from_str(question).map_err(sentence)?;
        serde_json::to_string(&self.open()?.allocation(&question).map_err(sentence)?).map_err(sentence)
    }

    /// `HoldersQuestion` to `HoldersAnswer`, as JSON.
    ///
    /// # Errors
    /// A sentence when nothing is open, or the question cannot be answered.
    pub fn holders(&self, question: &str) -> Result<String, JsValue> {
        let question = serde_json::from_str(question).map_err(sentence)?;
        serde_json::to_string(&self.open()?.holders(&question).map_err(sentence)?).map_err(sentence)
    }

    /// `MarkedQuestion` to one bit for each allocation of the device, lowest first.
    ///
    /// # Errors
    /// A sentence when nothing is open, or the question cannot be answered.
    pub fn marked(&self, question: &str) -> Result<Uint8Array, JsValue> {
        let question = serde_json::from_str(question).map_err(sentence)?;
        let bits = self.open()?.marked(&question).map_err(sentence)?;
        Ok(Uint8Array::from(bits.as_slice()))
    }

    /// `MemoryQuestion` to `MemoryAnswer`, as JSON. The rectangles are then in [`Self::block_cells`] and
    /// [`Self::block_sizes`].
    ///
    /// # Errors
    /// A sentence when nothing is open, or the device has nothing.
    pub fn memory(&mut self, question: &str) -> Result<String, JsValue> {
        let question = serde_json::from_str(question).map_err(sentence)?;
        let (answer, blocks) = self.open()?.memory(&question).map_err(sentence)?;
        self.blocks = blocks;
        serde_json::to_string(&answer).map_err(sentence)
    }

    /// The rectangles of the latest memory: [`Block::N_CELLS`] numbers each.
    pub fn block_cells(&self) -> Uint32Array {
        let cells: Vec<u32> = self.blocks.iter().flat_map(|block| block.to_numbers().0).collect();
        Uint32Array::from(&cells[..])
    }

    /// Their sizes: [`Block::N_SIZES`] numbers each.
    pub fn block_sizes(&self) -> Float64Array {
        let sizes: Vec<f64> = self.blocks.iter().flat_map(|block| block.to_numbers().1).collect();
        Float64Array::from(&sizes[..])
    }

    /// `LevelsQuestion` to `Breakdown`, as JSON: the stacks that hold most.
    ///
    /// # Errors
    /// A sentence when nothing is open, or the device has nothing.
    pub fn top_stacks(&self, question: &str) -> Result<String, JsValue> {
        let question = serde_json::from_str(question).map_err(sentence)?;
        serde_json::to_string(&self.open()?.top_stacks(&question).map_err(sentence)?).map_err(sentence)
    }

    fn open(&self) -> Result<&Document, JsValue> {
        self.document.as_ref().ok_or_else(|| sentence("no snapshot is open"))
    }

    fn keep(&mut self, document: Document) -> Result<String, JsValue> {
        let answer = serde_json::to_string(&document.opened()).map_err(sentence)?;
        self.document = Some(document);
        Ok(answer)
    }

    fn close(&mut self) {
        *self = Self::default();
    }
}
