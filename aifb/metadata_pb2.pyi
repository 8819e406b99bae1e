from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    BOOL: _ClassVar[DType]
    UINT8: _ClassVar[DType]
    INT8: _ClassVar[DType]
    INT16: _ClassVar[DType]
    INT32: _ClassVar[DType]
    INT64: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]
    BFLOAT16: _ClassVar[DType]
    FLOAT32: _ClassVar[DType]
    FLOAT64: _ClassVar[DType]
    FLOAT8_E4M3: _ClassVar[DType]
    FLOAT8_E5M2: _ClassVar[DType]
    INT4: _ClassVar[DType]
DTYPE_UNSPECIFIED: DType
BOOL: DType
UINT8: DType
INT8: DType
INT16: DType
INT32: DType
INT64: DType
FLOAT16: DType
BFLOAT16: DType
FLOAT32: DType
FLOAT64: DType
FLOAT8_E4M3: DType
FLOAT8_E5M2: DType
INT4: DType

class Metadata(_message.Message):
    __slots__ = ("format", "tensors", "graph", "assets", "entry_points", "notes")
    class NotesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    ASSETS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_POINTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    format: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    graph: Graph
    assets: _containers.RepeatedCompositeFieldContainer[Asset]
    entry_points: _containers.RepeatedCompositeFieldContainer[EntryPoint]
    notes: _containers.ScalarMap[str, str]
    def __init__(self, format: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., graph: _Optional[_Union[Graph, _Mapping]] = ..., assets: _Optional[_Iterable[_Union[Asset, _Mapping]]] = ..., entry_points: _Optional[_Iterable[_Union[EntryPoint, _Mapping]]] = ..., notes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset", "length", "alias_of", "quantisation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ALIAS_OF_FIELD_NUMBER: _ClassVar[int]
    QUANTISATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    length: int
    alias_of: str
    quantisation: Quantisation
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., alias_of: _Optional[str] = ..., quantisation: _Optional[_Union[Quantisation, _Mapping]] = ...) -> None: ...

class Quantisation(_message.Message):
    __slots__ = ("scheme", "axis", "scale_tensor", "logical_dtype")
    class Scheme(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCHEME_UNSPECIFIED: _ClassVar[Quantisation.Scheme]
        PER_ROW: _ClassVar[Quantisation.Scheme]
        PER_TENSOR: _ClassVar[Quantisation.Scheme]
    SCHEME_UNSPECIFIED: Quantisation.Scheme
    PER_ROW: Quantisation.Scheme
    PER_TENSOR: Quantisation.Scheme
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    SCALE_TENSOR_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_DTYPE_FIELD_NUMBER: _ClassVar[int]
    scheme: Quantisation.Scheme
    axis: int
    scale_tensor: str
    logical_dtype: DType
    def __init__(self, scheme: _Optional[_Union[Quantisation.Scheme, str]] = ..., axis: _Optional[int] = ..., scale_tensor: _Optional[str] = ..., logical_dtype: _Optional[_Union[DType, str]] = ...) -> None: ...

class Asset(_message.Message):
    __slots__ = ("name", "media_type", "offset", "length")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    media_type: str
    offset: int
    length: int
    def __init__(self, name: _Optional[str] = ..., media_type: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("symbols", "inputs", "nodes", "outputs")
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    symbols: _containers.RepeatedCompositeFieldContainer[Symbol]
    inputs: _containers.RepeatedCompositeFieldContainer[GraphInput]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    outputs: _containers.RepeatedCompositeFieldContainer[GraphOutput]
    def __init__(self, symbols: _Optional[_Iterable[_Union[Symbol, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[GraphInput, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[GraphOutput, _Mapping]]] = ...) -> None: ...

class Symbol(_message.Message):
    __slots__ = ("name", "min", "max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    min: int
    max: int
    def __init__(self, name: _Optional[str] = ..., min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class Dim(_message.Message):
    __slots__ = ("size", "symbol")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    size: int
    symbol: str
    def __init__(self, size: _Optional[int] = ..., symbol: _Optional[str] = ...) -> None: ...

class GraphInput(_message.Message):
    __slots__ = ("name", "dtype", "dims")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    dims: _containers.RepeatedCompositeFieldContainer[Dim]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., dims: _Optional[_Iterable[_Union[Dim, _Mapping]]] = ...) -> None: ...

class GraphOutput(_message.Message):
    __slots__ = ("name", "value", "dtype", "dims")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    dtype: DType
    dims: _containers.RepeatedCompositeFieldContainer[Dim]
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., dims: _Optional[_Iterable[_Union[Dim, _Mapping]]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("op", "name", "args", "kwargs", "outputs")
    OP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    op: str
    name: str
    args: _containers.RepeatedCompositeFieldContainer[Arg]
    kwargs: _containers.RepeatedCompositeFieldContainer[NamedArg]
    outputs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, op: _Optional[str] = ..., name: _Optional[str] = ..., args: _Optional[_Iterable[_Union[Arg, _Mapping]]] = ..., kwargs: _Optional[_Iterable[_Union[NamedArg, _Mapping]]] = ..., outputs: _Optional[_Iterable[str]] = ...) -> None: ...

class NamedArg(_message.Message):
    __slots__ = ("name", "arg")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARG_FIELD_NUMBER: _ClassVar[int]
    name: str
    arg: Arg
    def __init__(self, name: _Optional[str] = ..., arg: _Optional[_Union[Arg, _Mapping]] = ...) -> None: ...

class Arg(_message.Message):
    __slots__ = ("none", "bool_value", "int_value", "float_value", "str_value", "dtype", "tensor", "value", "symbol", "list")
    NONE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUE_FIELD_NUMBER: _ClassVar[int]
    STR_VALUE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    none: bool
    bool_value: bool
    int_value: int
    float_value: float
    str_value: str
    dtype: DType
    tensor: str
    value: str
    symbol: str
    list: ArgList
    def __init__(self, none: _Optional[bool] = ..., bool_value: _Optional[bool] = ..., int_value: _Optional[int] = ..., float_value: _Optional[float] = ..., str_value: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., tensor: _Optional[str] = ..., value: _Optional[str] = ..., symbol: _Optional[str] = ..., list: _Optional[_Union[ArgList, _Mapping]] = ...) -> None: ...

class ArgList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Arg]
    def __init__(self, items: _Optional[_Iterable[_Union[Arg, _Mapping]]] = ...) -> None: ...

class EntryPoint(_message.Message):
    __slots__ = ("name", "preprocess", "postprocess", "inputs", "outputs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREPROCESS_FIELD_NUMBER: _ClassVar[int]
    POSTPROCESS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    preprocess: Step
    postprocess: Step
    inputs: _containers.RepeatedCompositeFieldContainer[Port]
    outputs: _containers.RepeatedCompositeFieldContainer[Port]
    def __init__(self, name: _Optional[str] = ..., preprocess: _Optional[_Union[Step, _Mapping]] = ..., postprocess: _Optional[_Union[Step, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[Port, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Port, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("kind", "params")
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    params: _containers.ScalarMap[str, str]
    def __init__(self, kind: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Port(_message.Message):
    __slots__ = ("name", "datatype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATATYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    datatype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., datatype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...
