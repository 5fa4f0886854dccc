//! Where an upload says it belongs: the query, the sidecar and the file's path made into one place.

use std::io::Read as _;

use axum::extract::Query;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use tidegauge_api::from_path::place_from_path;
use tidegauge_api::{Place, Sidecar, sidecar, tus};

/// The run of uploads that name none.
const UNNAMED: &str = "unnamed";

/// The parameters of an upload, as they are told to a caller who got one wrong.
const PARAMETERS: &str = "run, role, rank, step, first_step, attempt, host, pid, reason and file_name";

/// Longest run name, characters.
const MAX_RUN_CHARS: usize = 200;
/// Longest role or reason, characters.
const MAX_WORD_CHARS: usize = 100;
/// Longest host name, characters: the DNS's own limit.
const MAX_HOST_CHARS: usize = 255;
/// Longest file name with its folders, characters.
const MAX_FILE_NAME_CHARS: usize = 1024;

/// What an upload says of itself. The place is normal: empty words are absent, the reason is always there, a
/// window of one step has no first step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) run: String,
    pub(crate) place: Place,
    pub(crate) file_name: Option<String>,
    pub(crate) sidecar: Option<Sidecar>,
}

/// Reads what a request says. The query wins over the sidecar, the sidecar over the file's path.
///
/// The error is a sentence for the caller.
pub(crate) fn said(request: &Parts) -> Result<Said, String> {
    let asked = parameters(query(&request.uri)?)?;
    put_together(asked, sidecar_header(&request.headers)?)
}

/// Reads what the beginning of a resumable upload says. What `Upload-Metadata` holds counts as the query does; a
/// sidecar may come in the metadata or in its header.
///
/// The error is a sentence for the caller.
pub(crate) fn said_of_upload(request: &Parts) -> Result<Said, String> {
    let Metadata { parameters: more, sidecar, content_digest } = metadata(&request.headers)?;
    let asked = parameters(query(&request.uri)?.into_iter().chain(more))?;
    let mut sidecar = match sidecar {
        Some(sidecar) => Some(sidecar),
        None => sidecar_header(&request.headers)?,
    };
    if content_digest.is_some() {
        sidecar.get_or_insert_default().content_digest = content_digest;
    }
    put_together(asked, sidecar)
}

fn put_together(
    (asked, asked_file_name): (Place, Option<String>),
    sidecar: Option<Sidecar>,
) -> Result<Said, String> {
    let file_name = asked_file_name.or_else(|| sidecar.as_ref()?.file_name.clone());
    let place = asked
        .or(sidecar.as_ref().map(|sidecar| sidecar.place.clone()).unwrap_or_default())
        .or(file_name.as_deref().and_then(place_from_path).map(|told| told.place).unwrap_or_default());
    let place = normal(place)?;
    let file_name = word("file_name", file_name, MAX_FILE_NAME_CHARS)?;
    Ok(Said { run: place.run.clone().unwrap_or_else(|| UNNAMED.to_owned()), place, file_name, sidecar })
}

/// The run and the place of a process, without steps and reason.
///
/// The error is a sentence for the caller.
pub(crate) fn process(place: Place) -> Result<(String, Place), String> {
    let place = normal(Place { first_step: None, last_step: None, reason: None, ..place })?;
    let run = place.run.clone().unwrap_or_else(|| UNNAMED.to_owned());
    Ok((run, Place { run: None, reason: None, ..place }))
}

fn query(uri: &Uri) -> Result<Vec<(String, String)>, String> {
    match Query::try_from_uri(uri) {
        Ok(Query(pairs)) => Ok(pairs),
        Err(error) => Err(format!("the query cannot be read: {error}")),
    }
}

fn parameters(pairs: impl IntoIterator<Item = (String, String)>) -> Result<(Place, Option<String>), String> {
    let mut place = Place::default();
    let mut file_name = None;
    let mut seen = Vec::new();
    for (name, value) in pairs {
        if seen.contains(&name) {
            return Err(format!("the parameter {name:?} is there twice"));
        }
        match name.as_str() {
            "run" => place.run = Some(value),
            "role" => place.role = Some(value),
            "host" => place.host = Some(value),
            "reason" => place.reason = Some(value),
            "file_name" => file_name = Some(value),
            "rank" => place.rank = number(&name, &value)?,
            "pid" => place.pid = number(&name, &value)?,
            "attempt" => place.attempt = number(&name, &value)?,
            "step" => place.last_step = number(&name, &value)?,
            "first_step" => place.first_step = number(&name, &value)?,
            _ => return Err(format!("the parameter {name:?} is not known; there are {PARAMETERS}")),
        }
        seen.push(name);
    }
    Ok((place, file_name))
}

/// A whole number, or nothing where a form left its field empty.
fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<Option<T>, String> {
    match value.trim() {
        "" => Ok(None),
        digits => match digits.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => {
                Err(format!("the parameter \"{name}\" should be a whole number from 0, found {value:?}"))
            }
        },
    }
}

/// What `Upload-Metadata` holds.
#[derive(Default)]
struct Metadata {
    parameters: Vec<(String, String)>,
    sidecar: Option<Sidecar>,
    content_digest: Option<String>,
}

/// "key base64, key base64": what the tus protocol calls metadata.
fn metadata(headers: &HeaderMap) -> Result<Metadata, String> {
    let mut metadata = Metadata::default();
    let Some(value) = headers.get(tus::METADATA) else { return Ok(metadata) };
    let text = value.to_str().map_err(|_odd| format!("the {} header is no plain text", tus::METADATA))?;
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once(' ').unwrap_or((pair, ""));
        let value = BASE64_STANDARD
            .decode(value.trim())
            .map_err(|error| format!("{}: the value of {key:?} is not base64: {error}", tus::METADATA))?;
        match key {
            tus::SIDECAR => metadata.sidecar = Some(sidecar_from_json(&value, key)?),
            tus::SIDECAR_ZSTD => metadata.sidecar = Some(sidecar_from_json(&unpacked(&value)?, key)?),
            // Clients made for other servers say so much of their files.
            "filetype" | "type" => {}
            _ => {
                let value = String::from_utf8(value)
                    .map_err(|_bytes| format!("{}: the value of {key:?} is no text", tus::METADATA))?;
                match key {
                    tus::CONTENT_DIGEST => metadata.content_digest = Some(value),
                    "filename" => metadata.parameters.push(("file_name".to_owned(), value)),
                    _ => metadata.parameters.push((key.to_owned(), value)),
                }
            }
        }
    }
    Ok(metadata)
}

fn unpacked(zstd: &[u8]) -> Result<Vec<u8>, String> {
    let mut json = Vec::new();
    zstd::Decoder::new(zstd)
        .and_then(|decoder| decoder.take(sidecar::MAX_JSON_BYTES as u64 + 1).read_to_end(&mut json))
        .map_err(|error| format!("{} is not zstd: {error}", tus::SIDECAR_ZSTD))?;
    Ok(json)
}

fn sidecar_from_json(json: &[u8], whence: &str) -> Result<Sidecar, String> {
    if json.len() > sidecar::MAX_JSON_BYTES {
        return Err(format!(
            "the sidecar is longer than the {} bytes that are read",
            sidecar::MAX_JSON_BYTES
        ));
    }
    serde_json::from_slice(json).map_err(|error| format!("{whence} does not hold a sidecar's JSON: {error}"))
}

fn sidecar_header(headers: &HeaderMap) -> Result<Option<Sidecar>, String> {
    let Some(value) = headers.get(sidecar::HEADER) else { return Ok(None) };
    let bytes = value.as_bytes();
    if bytes.len() > sidecar::MAX_HEADER_BYTES {
        return Err(format!(
            "the {} header is {} bytes long, {} are read",
            sidecar::HEADER,
            bytes.len(),
            sidecar::MAX_HEADER_BYTES
        ));
    }
    let json = BASE64_URL_SAFE_NO_PAD.decode(bytes).map_err(|error| {
        format!("the {} header is not base64url without padding: {error}", sidecar::HEADER)
    })?;
    sidecar_from_json(&json, &format!("the {} header", sidecar::HEADER)).map(Some)
}

fn normal(place: Place) -> Result<Place, String> {
    // SQLite counts to i64::MAX.
    if let Some(step) = place.first_step.max(place.last_step).filter(|step| i64::try_from(*step).is_err()) {
        return Err(format!("step {step} is more than can be kept"));
    }
    if let (Some(first), Some(last)) = (place.first_step, place.last_step)
        && first > last
    {
        return Err(format!("the window begins at step {first}, after its last step {last}"));
    }
    Ok(Place {
        run: word("run", place.run, MAX_RUN_CHARS)?,
        role: word("role", place.role, MAX_WORD_CHARS)?,
        host: word("host", place.host, MAX_HOST_CHARS)?,
        reason: word("reason", place.reason, MAX_WORD_CHARS)?.or_else(|| Some("step".to_owned())),
        first_step: place.first_step.filter(|first| Some(*first) != place.last_step),
        ..place
    })
}

/// A word of bounded length without control characters; an empty one is none.
pub(crate) fn word(name: &str, value: Option<String>, max_chars: usize) -> Result<Option<String>, String> {
    let Some(value) = value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    if value.chars().nth(max_chars).is_some() {
        return Err(format!("the {name} is longer than {max_chars} characters"));
    }
    if value.chars().any(char::is_control) {
        return Err(format!("the {name} holds a control character: {value:?}"));
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn say(query: &str, sidecar: Option<&str>) -> Result<Said, String> {
        let mut request = Request::builder().uri(format!("/api/v1/snapshots?{query}"));
        if let Some(json) = sidecar {
            request = request.header(sidecar::HEADER, BASE64_URL_SAFE_NO_PAD.encode(json));
        }
        said(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn the_query_wins_over_the_sidecar_and_the_sidecar_over_the_path() {
        let said = say(
            "rank=3&file_name=out/steps4-5/torch_memory_rank0_pid9.pickle",
            Some(r#"{"sidecar": 1, "rank": 2, "run": "llama", "pid": 7, "color": "blue"}"#),
        )
        .unwrap();
        assert_eq!(said.run, "llama");
        assert_eq!(
            (said.place.rank, said.place.pid, said.place.step_label()),
            (Some(3), Some(7), "4–5".to_owned())
        );
        assert_eq!(said.sidecar.unwrap().more["color"], "blue");
    }

    #[test]
    fn what_is_not_said_is_absent_and_the_run_is_unnamed() {
        let said = say("rank=&role=+", None).unwrap();
        assert_eq!(said.run, "unnamed");
        assert_eq!(said.place, Place { reason: Some("step".to_owned()), ..Place::default() });
    }

    #[test]
    fn a_window_of_one_step_is_that_step() {
        assert_eq!(say("first_step=5&step=5", None).unwrap(), say("step=5&reason=step", None).unwrap());
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let wrong = |query: &str| say(query, None).unwrap_err();
        assert_eq!(wrong("rank=-1"), "the parameter \"rank\" should be a whole number from 0, found \"-1\"");
        assert!(wrong("stpe=1").starts_with("the parameter \"stpe\" is not known; there are run, role"));
        assert_eq!(wrong("rank=1&rank=2"), "the parameter \"rank\" is there twice");
        assert_eq!(wrong("first_step=6&step=5"), "the window begins at step 6, after its last step 5");
        assert_eq!(wrong("step=9223372036854775808"), "step 9223372036854775808 is more than can be kept");
        assert_eq!(wrong(&format!("run={}", "%C3%A9".repeat(201))), "the run is longer than 200 characters");
        assert_eq!(wrong("run=a%0Ab"), "the run holds a control character: \"a\\nb\"");
    }

    #[test]
    fn a_wrong_sidecar_says_what_is_wrong_with_it() {
        assert!(say("", Some("{")).unwrap_err().contains("does not hold a sidecar's JSON"));
        let request = Request::builder().header(sidecar::HEADER, "e30=").body(()).unwrap();
        assert!(said(&request.into_parts().0).unwrap_err().contains("not base64url without padding"));
    }
}
