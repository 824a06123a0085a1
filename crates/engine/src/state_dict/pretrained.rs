//! Checks the weights of a Hugging Face model directory. Every stage checks the whole directory, so that all stages
//! report the same error.

use std::collections::BTreeMap;

use stagecoach_checkpoint::{CheckpointError, ModelFiles, is_float};
use stagecoach_model::{Architecture, ParameterSpec, names};

/// The suffix of buffers that old versions of Hugging Face's Llama saved. Stagecoach computes these buffers itself.
const ROTARY_BUFFER: &str = ".rotary_emb.inv_freq";

/// Checks that `files` contains exactly the weights of `architecture`.
///
/// # Errors
/// If a parameter is missing, has another shape, or has a dtype that is not a floating-point type. The error names the
/// first such parameter in the order of names. If the directory has a tensor that the architecture does not use,
/// because the model would differ without it.
pub fn check_model(files: &ModelFiles, architecture: &dyn Architecture) -> Result<(), CheckpointError> {
    let content_error = |problem: String| CheckpointError::Content { path: files.folder().to_owned(), problem };
    let model_specs = architecture.all_weight_specs().into_iter().filter(ParameterSpec::is_model_weight);
    let expected: BTreeMap<String, Vec<i64>> = model_specs.map(|spec| (spec.name, spec.shape)).collect();
    for (name, shape) in &expected {
        let Some(found) = files.tensor(name) else {
            return Err(content_error(format!(
                "has no tensor {name}, which this model needs with shape {shape:?}: the files belong to another model"
            )));
        };
        let same_shape = found.shape.iter().map(|&dim| dim as i64).eq(shape.iter().copied());
        if !same_shape || !is_float(found.dtype) {
            return Err(content_error(format!(
                "has {name} as {found}, but this model needs a floating-point tensor of shape {shape:?}: the files \
                 belong to another model"
            )));
        }
    }
    let ignored =
        |name: &str| name.ends_with(ROTARY_BUFFER) || (architecture.tie_word_embeddings() && name == names::HEAD);
    match files.names().find(|name| !expected.contains_key(*name) && !ignored(name)) {
        Some(unused) => Err(content_error(format!(
            "has a tensor {unused}, which this architecture does not use: the model would differ without it"
        ))),
        None => Ok(()),
    }
}

/// If the model ties head and embedding, checks that a head in `files` equals the embedding. The check reads both
/// tensors.
///
/// # Errors
/// If the two tensors differ, or can't be read.
pub fn check_tied_head(files: &ModelFiles, architecture: &dyn Architecture) -> Result<(), CheckpointError> {
    let has_both = files.tensor(names::HEAD).is_some() && architecture.tie_word_embeddings();
    if !has_both || files.are_equal(names::HEAD, names::EMBEDDING)? {
        return Ok(());
    }
    let problem = format!(
        "has a {} that differs from {}, but its config.json has tie_word_embeddings: true, for which both must be \
         equal: set tie_word_embeddings to false to keep the head, or remove the head",
        names::HEAD,
        names::EMBEDDING
    );
    Err(CheckpointError::Content { path: files.folder().to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stagecoach_api::job::{AdamWSpec, ModelType, Precision, Recompute};
    use stagecoach_checkpoint::{Dtype, TensorView};
    use stagecoach_pipeline::{Partition, Placement, Replica};
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::execute::{Stage, StageConfig};
    use crate::state_dict::InitialWeights;
    use stagecoach_model::{LlamaConfig, ModelConfig, ModelPart};

    type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

    fn llama(tied: bool) -> Box<dyn Architecture> {
        let config = LlamaConfig {
            model_type: ModelType::Llama,
            hidden_size: 8,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 4,
            intermediate_size: 12,
            vocab_size: 10,
            max_position_embeddings: 16,
            rope_theta: 10_000.0,
            rope_scaling: None,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: tied,
            initializer_range: 0.02,
        };
        config.architecture(Device::Cpu)
    }

    /// Returns the model's tensors in four dtypes, with values that each tensor's dtype represents exactly.
    fn tensors(model: &dyn Architecture) -> Tensors {
        let whole = ModelPart { layers: 0..model.num_layers(), has_embedding: true, has_head: true };
        let kinds = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64];
        let tensor = |(at, spec): (usize, stagecoach_model::ParameterSpec)| {
            let count = spec.shape.iter().product::<i64>() as usize;
            let values = (0..count).map(|i| (i % 200) as f32 / 64.0 - at as f32);
            let dtype = kinds[at % 4];
            let bytes = values.flat_map(|value| match dtype {
                Dtype::F64 => f64::from(value).to_le_bytes().to_vec(),
                Dtype::F32 => value.to_le_bytes().to_vec(),
                Dtype::BF16 => value.trunc().to_le_bytes()[2..].to_vec(),
                _ => half(value.trunc()).to_le_bytes().to_vec(),
            });
            let shape = spec.shape.iter().map(|&dim| dim as usize).collect();
            (spec.name, (dtype, shape, bytes.collect()))
        };
        model.parameter_specs(&whole).into_iter().enumerate().map(tensor).collect()
    }

    /// Converts an integer to binary16.
    fn half(value: f32) -> u16 {
        let bits = value.to_bits();
        let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
        let magnitude = if value == 0.0 { 0 } else { (exponent as u32) << 10 | bits >> 13 & 0x3ff };
        (bits >> 16 & 0x8000 | magnitude) as u16
    }

    fn files(tensors: &Tensors) -> (tempfile::TempDir, ModelFiles) {
        let folder = tempfile::tempdir().unwrap();
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        let files = ModelFiles::open(folder.path()).unwrap();
        (folder, files)
    }

    fn stage(model: &dyn Architecture, rank: usize, layers: &[usize]) -> Stage {
        let config = StageConfig {
            architecture: model,
            placement: &Placement::linear(layers.len()),
            partition: &Partition { layers: layers.to_vec() },
            seed: None,
            optimizer: AdamWSpec::default(),
            recompute: Recompute::None,
            precision: Precision::Float32,
            device: Device::Cpu,
            replica: Replica::ONLY,
        };
        Stage::build(rank, &config)
    }

    fn refusal(model: &dyn Architecture, change: impl FnOnce(&mut Tensors)) -> String {
        let mut tensors = tensors(model);
        change(&mut tensors);
        check_model(&files(&tensors).1, model).unwrap_err().to_string()
    }

    #[test]
    fn every_stage_loads_its_own_weights_as_fp32() {
        for tied in [false, true] {
            let model = llama(tied);
            let tensors = tensors(model.as_ref());
            let (_folder, files) = files(&tensors);
            for (rank, layers) in [(0, &[2][..]), (0, &[1, 1]), (1, &[1, 1]), (2, &[1, 1, 0])] {
                let stage = stage(model.as_ref(), rank, layers);
                InitialWeights::open(files.folder()).unwrap().load(model.as_ref(), &stage, &mut |_| {}).unwrap();
                for parameter in stage.parameters.iter() {
                    let (dtype, shape, bytes) = &tensors[&parameter.spec.name];
                    let kind = match dtype {
                        Dtype::F32 => Kind::Float,
                        Dtype::F16 => Kind::Half,
                        Dtype::BF16 => Kind::BFloat16,
                        _ => Kind::Double,
                    };
                    let shape: Vec<i64> = shape.iter().map(|&dim| dim as i64).collect();
                    let expected = Tensor::from_data_size(bytes, &shape, kind).to_kind(Kind::Float);
                    assert!(parameter.value.equal(&expected), "{}", parameter.spec.name);
                }
            }
        }
    }

    #[test]
    fn weights_of_another_model_are_refused_with_the_tensors_name() {
        let (untied, tied) = (llama(false), llama(true));
        let first = "lm_head.weight";
        let second = "model.embed_tokens.weight";
        let error = refusal(untied.as_ref(), |t| drop((t.remove(second), t.remove(first))));
        assert!(error.contains("has no tensor lm_head.weight, which this model needs with shape [10, 8]"), "{error}");
        let error = refusal(untied.as_ref(), |t| t.get_mut(second).unwrap().1 = vec![8, 10]);
        assert!(error.contains(second) && error.contains("F32[8, 10]") && error.contains("shape [10, 8]"), "{error}");
        let error = refusal(tied.as_ref(), |t| drop(t.insert(second.into(), (Dtype::U8, vec![10, 8], vec![0; 80]))));
        assert!(error.contains("U8[10, 8]"), "{error}");
        let bias = "model.layers.1.self_attn.q_proj.bias";
        let error = refusal(tied.as_ref(), |t| drop(t.insert(bias.into(), (Dtype::F32, vec![1], vec![0; 4]))));
        assert!(error.contains(&format!("has a tensor {bias}, which this architecture does not use")), "{error}");
    }

    #[test]
    fn known_extra_tensors_are_ignored() {
        let model = llama(true);
        let mut tensors = tensors(model.as_ref());
        tensors.insert(names::HEAD.into(), tensors[names::EMBEDDING].clone());
        tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), (Dtype::F32, vec![1], vec![0; 4]));
        let files = files(&tensors).1;
        check_model(&files, model.as_ref()).unwrap();
        check_tied_head(&files, model.as_ref()).unwrap();
    }

    #[test]
    fn a_head_of_its_own_beside_a_tied_embedding_is_refused() {
        let mut tensors = tensors(llama(false).as_ref());
        let check = |tensors: &Tensors, tied| check_tied_head(&files(tensors).1, llama(tied).as_ref());
        check(&tensors, false).unwrap();
        let mut head = tensors[names::EMBEDDING].clone();
        *head.2.last_mut().unwrap() ^= 1;
        for other in [head, (Dtype::F32, vec![1], vec![0; 4])] {
            tensors.insert(names::HEAD.into(), other);
            let error = check(&tensors, true).unwrap_err().to_string();
            assert!(error.contains("has a lm_head.weight that differs from model.embed_tokens.weight"), "{error}");
        }
    }
}
