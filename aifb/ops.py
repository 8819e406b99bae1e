"""The one list of operations an artifact's graph may name. Writer, reader and engine share it.

ATen names with their overload, as `torch.export` gives them before decomposition. What is on it is a pure function of
its arguments: nothing here writes to an argument, touches files, reads uninitialised memory or draws random numbers.
docs/howto says how to add one.
"""

_ELEMENTWISE = """
    abs ceil clamp clamp_min clamp_max cos erf exp floor gelu hardsigmoid hardswish leaky_relu log log1p log2
    log_sigmoid neg reciprocal relu relu6 round rsqrt sigmoid sign silu sin softplus sqrt square tan tanh trunc elu
    bitwise_not logical_not isnan isinf mish
"""
_BINARY = "add sub mul div floor_divide remainder pow eq ne lt le gt ge bitwise_and bitwise_or"
_WITH_OVERLOADS = """
    maximum.default minimum.default logical_and.default logical_or.default rsub.Scalar rsub.Tensor atan2.default
    where.self where.ScalarSelf where.ScalarOther where.Scalar masked_fill.Scalar masked_fill.Tensor lerp.Scalar
    pow.Tensor_Tensor pow.Scalar clamp.Tensor div.Tensor_mode div.Scalar_mode
    linear.default matmul.default mm.default bmm.default addmm.default baddbmm.default
    conv1d.default conv2d.default conv1d.padding conv2d.padding conv_transpose2d.input
    layer_norm.default rms_norm.default group_norm.default batch_norm.default
    scaled_dot_product_attention.default softmax.int log_softmax.int _softmax.default
    max_pool1d.default max_pool2d.default avg_pool1d.default avg_pool2d.default
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default upsample_nearest2d.vec upsample_bilinear2d.vec
    embedding.default gather.default index_select.default index.Tensor take_along_dim.default one_hot.default
    sum.default sum.dim_IntList mean.default mean.dim amax.default amin.default max.default max.dim min.default min.dim
    argmax.default argmin.default prod.dim_int any.dim all.dim any.default all.default cumsum.default var.correction
    std.correction logsumexp.default norm.ScalarOpt_dim linalg_vector_norm.default topk.default sort.default
    view.default reshape.default flatten.using_ints unflatten.int transpose.int permute.default t.default
    squeeze.default squeeze.dim squeeze.dims unsqueeze.default expand.default expand_as.default view_as.default
    repeat.default repeat_interleave.self_int cat.default stack.default split.Tensor split_with_sizes.default
    chunk.default unbind.int slice.Tensor select.int narrow.default pad.default constant_pad_nd.default flip.default
    roll.default tril.default triu.default clone.default contiguous.default alias.default detach.default
    arange.default arange.start arange.start_step full.default full_like.default zeros.default zeros_like.default
    ones.default ones_like.default new_zeros.default new_ones.default new_full.default scalar_tensor.default
    to.dtype to.dtype_layout type_as.default _to_copy.default sym_size.int movedim.int numpy_T.default
    lift_fresh_copy.default
"""
# Arithmetic on sizes: the graph computes reshaped sizes from symbolic ones.
_SYMBOLIC = "add sub mul floordiv"


def _names() -> frozenset[str]:
    names = {f"aten.{op}.default" for op in _ELEMENTWISE.split()}
    for op in _BINARY.split():
        tensor_scalar = ("Tensor_Scalar",) if op == "pow" else ("Scalar",)
        tensor = () if op == "pow" else ("default",) if op == "floor_divide" else ("Tensor",)
        names |= {f"aten.{op}.{overload}" for overload in (*tensor_scalar, *tensor)}
    names |= {f"aten.{op}" for op in _WITH_OVERLOADS.split()}
    names |= {f"sym.{op}" for op in _SYMBOLIC.split()}
    return frozenset(names)


ALLOWED_OPS: frozenset[str] = _names()
