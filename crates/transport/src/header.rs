//! The fixed header of a payload: its tag, element type and shape. The bytes of the payload follow the header in the
//! stream, or are in shared memory.

use tch::{Kind, Tensor};

use super::{LinkError, LinkPayload};

/// The size of an encoded header, in bytes.
pub(super) const HEADER_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"SCF1");
const MAX_DIMS: usize = 5;

/// The dtypes that links carry. A header identifies a dtype by its position in this list, counted from 1.
const KINDS: [Kind; 3] = [Kind::Float, Kind::BFloat16, Kind::Int64];

fn code(kind: Kind) -> u8 {
    KINDS.iter().position(|&known| known == kind).map_or(0, |at| at as u8 + 1)
}

/// The description of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The identifier of the tensor on its link, like `tag` in `torch.distributed.send`. Depending on the link, the tag
    /// is for example the microbatch, the index of a gradient or weight, or the low bits of the step to which a copy of
    /// training state belongs.
    pub(super) tag: u32,
    pub(super) kind: Kind,
    pub(super) shape: Vec<i64>,
}

impl Header {
    pub(crate) fn of(tag: u32, tensor: &Tensor) -> Header {
        Header { tag, kind: tensor.kind(), shape: tensor.size() }
    }

    /// Returns the size of the payload, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.kind.elt_size_in_bytes()
    }

    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.tag.to_le_bytes());
        out[8] = code(self.kind);
        out[9] = self.shape.len() as u8;
        for (slot, dim) in out[16..].chunks_exact_mut(8).zip(&self.shape) {
            slot.copy_from_slice(&dim.to_le_bytes());
        }
        out
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, LinkError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let dims = usize::from(bytes[9]);
        let kind = KINDS.into_iter().find(|&kind| code(kind) == bytes[8]);
        let (MAGIC, Some(kind), 0..=MAX_DIMS) = (word(0), kind, dims) else {
            return Err(LinkError::Mismatch(format!(
                "got bytes that are no tensor header (they start with {:02x?}): both stages must run the same version \
                 of Stagecoach",
                &bytes[..12]
            )));
        };
        let shape = bytes[16..].chunks_exact(8).take(dims);
        let shape = shape.map(|d| d.iter().rev().fold(0, |n, &byte| n << 8 | i64::from(byte))).collect();
        Ok(Header { tag: word(4), kind, shape })
    }
}

impl std::fmt::Display for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::Float => "f32",
            Kind::BFloat16 => "bf16",
            Kind::Int64 => "i64",
            _ => "?",
        };
        let dims: Vec<_> = self.shape.iter().map(i64::to_string).collect();
        write!(f, "{kind}[{}] with tag {}", dims.join(","), self.tag)
    }
}

/// Returns the pieces in which the link sends a contiguous tensor: flat parts of [`LinkPayload::part_elements`]
/// elements, or the whole tensor if the link does not split its tensors.
pub(super) fn parts(tensor: &Tensor, payload: LinkPayload) -> Vec<Tensor> {
    match payload.part_elements() {
        Some(elements) => tensor.view(-1).split(elements, 0),
        None => vec![tensor.shallow_clone()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_other_bytes_are_refused() {
        let header = Header { tag: 7, kind: Kind::Float, shape: vec![4, 512, 768] };
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        assert_eq!(header.bytes(), 4 * 512 * 768 * 4);
        assert_eq!(header.to_string(), "f32[4,512,768] with tag 7");
        let scalar = Header { tag: 0, kind: Kind::Int64, shape: vec![] };
        assert_eq!(Header::decode(&scalar.encode()).unwrap(), scalar);
        let mut broken = header.encode();
        broken[0] ^= 1;
        assert!(Header::decode(&broken).unwrap_err().to_string().contains("no tensor header"));
        let mut dims = header.encode();
        dims[9] = 200;
        assert!(Header::decode(&dims).is_err());
    }
}
