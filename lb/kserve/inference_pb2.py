"""Messages of the KServe v2 gRPC protocol. Written by tools/make_messages.py: do not edit.

They live in a descriptor pool of their own, because `tritonclient` registers messages of the same
names in protobuf's default pool. On the wire the two are the same; as Python classes they differ.
"""

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

SOURCE_SHA256 = "5e73eaf1016f615841a1b71cbf75db2c7a2b2bfadc7222ec019a22f19d34256f"

_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(
    b'\n\x0finference.proto\x12\tinference"\x13\n\x11ServerLiveRequest"(\n\x12ServerLiveR'
    b'esponse\x12\x12\n\x04live\x18\x01 \x01(\x08R\x04live"\x14\n\x12ServerReadyRequest"+\n\x13ServerReady'
    b'Response\x12\x14\n\x05ready\x18\x01 \x01(\x08R\x05ready"A\n\x11ModelReadyRequest\x12\x12\n\x04name\x18\x01 \x01('
    b'\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version"*\n\x12ModelReadyResponse\x12\x14\n\x05ready'
    b'\x18\x01 \x01(\x08R\x05ready"\x17\n\x15ServerMetadataRequest"f\n\x16ServerMetadataResponse'
    b'\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12\x1e\n\nextensions\x18\x03 \x03'
    b'(\tR\nextensions"D\n\x14ModelMetadataRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07ve'
    b'rsion\x18\x02 \x01(\tR\x07version"\xcf\x02\n\x15ModelMetadataResponse\x12\x12\n\x04name\x18\x01 \x01(\tR\x04na'
    b'me\x12\x1a\n\x08versions\x18\x02 \x03(\tR\x08versions\x12\x1a\n\x08platform\x18\x03 \x01(\tR\x08platform\x12G\n\x06in'
    b'puts\x18\x04 \x03(\x0b2/.inference.ModelMetadataResponse.TensorMetadataR\x06inp'
    b'uts\x12I\n\x07outputs\x18\x05 \x03(\x0b2/.inference.ModelMetadataResponse.TensorMet'
    b'adataR\x07outputs\x1aV\n\x0eTensorMetadata\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08datatype'
    b'\x18\x02 \x01(\tR\x08datatype\x12\x14\n\x05shape\x18\x03 \x03(\x03R\x05shape"\xd7\x01\n\x0eInferParameter\x12\x1f\n\nboo'
    b'l_param\x18\x01 \x01(\x08H\x00R\tboolParam\x12!\n\x0bint64_param\x18\x02 \x01(\x03H\x00R\nint64Param\x12#\n'
    b'\x0cstring_param\x18\x03 \x01(\tH\x00R\x0bstringParam\x12#\n\x0cdouble_param\x18\x04 \x01(\x01H\x00R\x0bdoub'
    b'leParam\x12#\n\x0cuint64_param\x18\x05 \x01(\x04H\x00R\x0buint64ParamB\x12\n\x10parameter_choice'
    b'"\xc3\x02\n\x13InferTensorContents\x12#\n\rbool_contents\x18\x01 \x03(\x08R\x0cboolContents\x12!\n'
    b'\x0cint_contents\x18\x02 \x03(\x05R\x0bintContents\x12%\n\x0eint64_contents\x18\x03 \x03(\x03R\rint64C'
    b"ontents\x12#\n\ruint_contents\x18\x04 \x03(\rR\x0cuintContents\x12'\n\x0fuint64_contents\x18"
    b'\x05 \x03(\x04R\x0euint64Contents\x12#\n\rfp32_contents\x18\x06 \x03(\x02R\x0cfp32Contents\x12#\n\rfp'
    b'64_contents\x18\x07 \x03(\x01R\x0cfp64Contents\x12%\n\x0ebytes_contents\x18\x08 \x03(\x0cR\rbytesCo'
    b'ntents"\x9d\x08\n\x11ModelInferRequest\x12\x1d\n\nmodel_name\x18\x01 \x01(\tR\tmodelName\x12#\n\rm'
    b'odel_version\x18\x02 \x01(\tR\x0cmodelVersion\x12\x0e\n\x02id\x18\x03 \x01(\tR\x02id\x12L\n\nparameters\x18\x04'
    b' \x03(\x0b2,.inference.ModelInferRequest.ParametersEntryR\nparameters\x12E'
    b'\n\x06inputs\x18\x05 \x03(\x0b2-.inference.ModelInferRequest.InferInputTensorR\x06i'
    b'nputs\x12Q\n\x07outputs\x18\x06 \x03(\x0b27.inference.ModelInferRequest.InferReques'
    b'tedOutputTensorR\x07outputs\x12,\n\x12raw_input_contents\x18\x07 \x03(\x0cR\x10rawInputCo'
    b'ntents\x1a\xcd\x02\n\x10InferInputTensor\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08datatype\x18\x02 \x01('
    b'\tR\x08datatype\x12\x14\n\x05shape\x18\x03 \x03(\x03R\x05shape\x12]\n\nparameters\x18\x04 \x03(\x0b2=.inferenc'
    b'e.ModelInferRequest.InferInputTensor.ParametersEntryR\nparameters'
    b'\x12:\n\x08contents\x18\x05 \x01(\x0b2\x1e.inference.InferTensorContentsR\x08contents\x1aX\n\x0f'
    b'ParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.inference.Inf'
    b'erParameterR\x05value:\x028\x01\x1a\xf3\x01\n\x1aInferRequestedOutputTensor\x12\x12\n\x04name\x18\x01 '
    b'\x01(\tR\x04name\x12g\n\nparameters\x18\x02 \x03(\x0b2G.inference.ModelInferRequest.Infe'
    b'rRequestedOutputTensor.ParametersEntryR\nparameters\x1aX\n\x0fParameters'
    b'Entry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.inference.InferParamete'
    b'rR\x05value:\x028\x01\x1aX\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b'
    b'2\x19.inference.InferParameterR\x05value:\x028\x01"\xdf\x05\n\x12ModelInferResponse\x12\x1d\n'
    b'\nmodel_name\x18\x01 \x01(\tR\tmodelName\x12#\n\rmodel_version\x18\x02 \x01(\tR\x0cmodelVersio'
    b'n\x12\x0e\n\x02id\x18\x03 \x01(\tR\x02id\x12M\n\nparameters\x18\x04 \x03(\x0b2-.inference.ModelInferResp'
    b'onse.ParametersEntryR\nparameters\x12I\n\x07outputs\x18\x05 \x03(\x0b2/.inference.Mo'
    b'delInferResponse.InferOutputTensorR\x07outputs\x12.\n\x13raw_output_conten'
    b'ts\x18\x06 \x03(\x0cR\x11rawOutputContents\x1a\xd0\x02\n\x11InferOutputTensor\x12\x12\n\x04name\x18\x01 \x01(\tR'
    b'\x04name\x12\x1a\n\x08datatype\x18\x02 \x01(\tR\x08datatype\x12\x14\n\x05shape\x18\x03 \x03(\x03R\x05shape\x12_\n\nparam'
    b'eters\x18\x04 \x03(\x0b2?.inference.ModelInferResponse.InferOutputTensor.Par'
    b'ametersEntryR\nparameters\x12:\n\x08contents\x18\x05 \x01(\x0b2\x1e.inference.InferTens'
    b'orContentsR\x08contents\x1aX\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05val'
    b'ue\x18\x02 \x01(\x0b2\x19.inference.InferParameterR\x05value:\x028\x01\x1aX\n\x0fParametersEntr'
    b'y\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.inference.InferParameterR\x05v'
    b'alue:\x028\x01"\x85\x01\n\x18ModelStreamInferResponse\x12#\n\rerror_message\x18\x01 \x01(\tR\x0cer'
    b'rorMessage\x12D\n\x0einfer_response\x18\x02 \x01(\x0b2\x1d.inference.ModelInferRespons'
    b'eR\rinferResponse"F\n\x16ModelStatisticsRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18'
    b'\n\x07version\x18\x02 \x01(\tR\x07version"9\n\x11StatisticDuration\x12\x14\n\x05count\x18\x01 \x01(\x04R\x05co'
    b'unt\x12\x0e\n\x02ns\x18\x02 \x01(\x04R\x02ns"\xf2\x03\n\x0fInferStatistics\x126\n\x07success\x18\x01 \x01(\x0b2\x1c.infer'
    b'ence.StatisticDurationR\x07success\x120\n\x04fail\x18\x02 \x01(\x0b2\x1c.inference.Statis'
    b'ticDurationR\x04fail\x122\n\x05queue\x18\x03 \x01(\x0b2\x1c.inference.StatisticDurationR\x05'
    b'queue\x12A\n\rcompute_input\x18\x04 \x01(\x0b2\x1c.inference.StatisticDurationR\x0ccomp'
    b'uteInput\x12A\n\rcompute_infer\x18\x05 \x01(\x0b2\x1c.inference.StatisticDurationR\x0cc'
    b'omputeInfer\x12C\n\x0ecompute_output\x18\x06 \x01(\x0b2\x1c.inference.StatisticDuratio'
    b'nR\rcomputeOutput\x129\n\tcache_hit\x18\x07 \x01(\x0b2\x1c.inference.StatisticDuratio'
    b'nR\x08cacheHit\x12;\n\ncache_miss\x18\x08 \x01(\x0b2\x1c.inference.StatisticDurationR\tc'
    b'acheMiss"\x86\x03\n\x17InferResponseStatistics\x12A\n\rcompute_infer\x18\x01 \x01(\x0b2\x1c.in'
    b'ference.StatisticDurationR\x0ccomputeInfer\x12C\n\x0ecompute_output\x18\x02 \x01(\x0b2'
    b'\x1c.inference.StatisticDurationR\rcomputeOutput\x126\n\x07success\x18\x03 \x01(\x0b2\x1c.'
    b'inference.StatisticDurationR\x07success\x120\n\x04fail\x18\x04 \x01(\x0b2\x1c.inference.S'
    b'tatisticDurationR\x04fail\x12C\n\x0eempty_response\x18\x05 \x01(\x0b2\x1c.inference.Stati'
    b'sticDurationR\remptyResponse\x124\n\x06cancel\x18\x06 \x01(\x0b2\x1c.inference.Statisti'
    b'cDurationR\x06cancel"\x80\x02\n\x14InferBatchStatistics\x12\x1d\n\nbatch_size\x18\x01 \x01(\x04R\t'
    b'batchSize\x12A\n\rcompute_input\x18\x02 \x01(\x0b2\x1c.inference.StatisticDurationR\x0c'
    b'computeInput\x12A\n\rcompute_infer\x18\x03 \x01(\x0b2\x1c.inference.StatisticDuratio'
    b'nR\x0ccomputeInfer\x12C\n\x0ecompute_output\x18\x04 \x01(\x0b2\x1c.inference.StatisticDur'
    b'ationR\rcomputeOutput"N\n\x0bMemoryUsage\x12\x12\n\x04type\x18\x01 \x01(\tR\x04type\x12\x0e\n\x02id\x18\x02 '
    b'\x01(\x03R\x02id\x12\x1b\n\tbyte_size\x18\x03 \x01(\x04R\x08byteSize"\xb6\x04\n\x0fModelStatistics\x12\x12\n\x04name'
    b'\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12%\n\x0elast_inference\x18\x03 \x01(\x04R\r'
    b"lastInference\x12'\n\x0finference_count\x18\x04 \x01(\x04R\x0einferenceCount\x12'\n\x0fexecut"
    b'ion_count\x18\x05 \x01(\x04R\x0eexecutionCount\x12C\n\x0finference_stats\x18\x06 \x01(\x0b2\x1a.infer'
    b'ence.InferStatisticsR\x0einferenceStats\x12@\n\x0bbatch_stats\x18\x07 \x03(\x0b2\x1f.infe'
    b'rence.InferBatchStatisticsR\nbatchStats\x129\n\x0cmemory_usage\x18\x08 \x03(\x0b2\x16.i'
    b'nference.MemoryUsageR\x0bmemoryUsage\x12T\n\x0eresponse_stats\x18\t \x03(\x0b2-.infe'
    b'rence.ModelStatistics.ResponseStatsEntryR\rresponseStats\x1ad\n\x12Respo'
    b'nseStatsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x128\n\x05value\x18\x02 \x01(\x0b2".inference.Infer'
    b'ResponseStatisticsR\x05value:\x028\x01"V\n\x17ModelStatisticsResponse\x12;\n\x0bmode'
    b'l_stats\x18\x01 \x03(\x0b2\x1a.inference.ModelStatisticsR\nmodelStats"\xba\x01\n\x18ModelR'
    b'epositoryParameter\x12\x1f\n\nbool_param\x18\x01 \x01(\x08H\x00R\tboolParam\x12!\n\x0bint64_par'
    b'am\x18\x02 \x01(\x03H\x00R\nint64Param\x12#\n\x0cstring_param\x18\x03 \x01(\tH\x00R\x0bstringParam\x12!\n\x0bb'
    b'ytes_param\x18\x04 \x01(\x0cH\x00R\nbytesParamB\x12\n\x10parameter_choice"W\n\x16Repository'
    b"IndexRequest\x12'\n\x0frepository_name\x18\x01 \x01(\tR\x0erepositoryName\x12\x14\n\x05ready\x18\x02"
    b' \x01(\x08R\x05ready"\xca\x01\n\x17RepositoryIndexResponse\x12E\n\x06models\x18\x01 \x03(\x0b2-.infere'
    b'nce.RepositoryIndexResponse.ModelIndexR\x06models\x1ah\n\nModelIndex\x12\x12\n\x04'
    b'name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\tR\x07version\x12\x14\n\x05state\x18\x03 \x01(\tR\x05state'
    b'\x12\x16\n\x06reason\x18\x04 \x01(\tR\x06reason"\x9f\x02\n\x1aRepositoryModelLoadRequest\x12\'\n\x0frepos'
    b'itory_name\x18\x01 \x01(\tR\x0erepositoryName\x12\x1d\n\nmodel_name\x18\x02 \x01(\tR\tmodelName\x12'
    b'U\n\nparameters\x18\x03 \x03(\x0b25.inference.RepositoryModelLoadRequest.Param'
    b'etersEntryR\nparameters\x1ab\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x129\n\x05v'
    b'alue\x18\x02 \x01(\x0b2#.inference.ModelRepositoryParameterR\x05value:\x028\x01"\x1d\n\x1bRe'
    b'positoryModelLoadResponse"\xa3\x02\n\x1cRepositoryModelUnloadRequest\x12\'\n\x0fre'
    b'pository_name\x18\x01 \x01(\tR\x0erepositoryName\x12\x1d\n\nmodel_name\x18\x02 \x01(\tR\tmodelNa'
    b'me\x12W\n\nparameters\x18\x03 \x03(\x0b27.inference.RepositoryModelUnloadRequest.'
    b'ParametersEntryR\nparameters\x1ab\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key'
    b'\x129\n\x05value\x18\x02 \x01(\x0b2#.inference.ModelRepositoryParameterR\x05value:\x028\x01"'
    b'\x1f\n\x1dRepositoryModelUnloadResponse"5\n\x1fSystemSharedMemoryStatusRequ'
    b'est\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"\xd7\x02\n SystemSharedMemoryStatusResponse\x12R\n\x07'
    b'regions\x18\x01 \x03(\x0b28.inference.SystemSharedMemoryStatusResponse.Regio'
    b'nsEntryR\x07regions\x1ai\n\x0cRegionStatus\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x10\n\x03key\x18\x02 \x01('
    b'\tR\x03key\x12\x16\n\x06offset\x18\x03 \x01(\x04R\x06offset\x12\x1b\n\tbyte_size\x18\x04 \x01(\x04R\x08byteSize\x1at\n\x0cR'
    b'egionsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12N\n\x05value\x18\x02 \x01(\x0b28.inference.SystemS'
    b'haredMemoryStatusResponse.RegionStatusR\x05value:\x028\x01"~\n!SystemShare'
    b'dMemoryRegisterRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x10\n\x03key\x18\x02 \x01(\tR\x03key\x12\x16\n\x06'
    b'offset\x18\x03 \x01(\x04R\x06offset\x12\x1b\n\tbyte_size\x18\x04 \x01(\x04R\x08byteSize"$\n"SystemShare'
    b'dMemoryRegisterResponse"9\n#SystemSharedMemoryUnregisterRequest\x12\x12'
    b'\n\x04name\x18\x01 \x01(\tR\x04name"&\n$SystemSharedMemoryUnregisterResponse"3\n\x1dCu'
    b'daSharedMemoryStatusRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"\xc4\x02\n\x1eCudaSharedMe'
    b'moryStatusResponse\x12P\n\x07regions\x18\x01 \x03(\x0b26.inference.CudaSharedMemory'
    b'StatusResponse.RegionsEntryR\x07regions\x1a\\\n\x0cRegionStatus\x12\x12\n\x04name\x18\x01 \x01'
    b'(\tR\x04name\x12\x1b\n\tdevice_id\x18\x02 \x01(\x04R\x08deviceId\x12\x1b\n\tbyte_size\x18\x03 \x01(\x04R\x08byteSi'
    b'ze\x1ar\n\x0cRegionsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12L\n\x05value\x18\x02 \x01(\x0b26.inference.'
    b'CudaSharedMemoryStatusResponse.RegionStatusR\x05value:\x028\x01"\x8e\x01\n\x1fCudaS'
    b'haredMemoryRegisterRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1d\n\nraw_handle\x18\x02 \x01'
    b'(\x0cR\trawHandle\x12\x1b\n\tdevice_id\x18\x03 \x01(\x03R\x08deviceId\x12\x1b\n\tbyte_size\x18\x04 \x01(\x04R\x08b'
    b'yteSize""\n CudaSharedMemoryRegisterResponse"7\n!CudaSharedMemoryU'
    b'nregisterRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name"$\n"CudaSharedMemoryUnregist'
    b'erResponse"\x8e\x02\n\x13TraceSettingRequest\x12H\n\x08settings\x18\x01 \x03(\x0b2,.inference'
    b'.TraceSettingRequest.SettingsEntryR\x08settings\x12\x1d\n\nmodel_name\x18\x02 \x01(\t'
    b'R\tmodelName\x1a$\n\x0cSettingValue\x12\x14\n\x05value\x18\x01 \x03(\tR\x05value\x1ah\n\rSettingsEnt'
    b'ry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12A\n\x05value\x18\x02 \x01(\x0b2+.inference.TraceSettingRequ'
    b'est.SettingValueR\x05value:\x028\x01"\xf2\x01\n\x14TraceSettingResponse\x12I\n\x08settings'
    b'\x18\x01 \x03(\x0b2-.inference.TraceSettingResponse.SettingsEntryR\x08settings\x1a'
    b'$\n\x0cSettingValue\x12\x14\n\x05value\x18\x01 \x03(\tR\x05value\x1ai\n\rSettingsEntry\x12\x10\n\x03key\x18\x01 '
    b'\x01(\tR\x03key\x12B\n\x05value\x18\x02 \x01(\x0b2,.inference.TraceSettingResponse.Setting'
    b'ValueR\x05value:\x028\x01"\xd6\x02\n\x12LogSettingsRequest\x12G\n\x08settings\x18\x01 \x03(\x0b2+.infe'
    b'rence.LogSettingsRequest.SettingsEntryR\x08settings\x1a\x8d\x01\n\x0cSettingValu'
    b'e\x12\x1f\n\nbool_param\x18\x01 \x01(\x08H\x00R\tboolParam\x12#\n\x0cuint32_param\x18\x02 \x01(\rH\x00R\x0buint'
    b'32Param\x12#\n\x0cstring_param\x18\x03 \x01(\tH\x00R\x0bstringParamB\x12\n\x10parameter_choice'
    b'\x1ag\n\rSettingsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12@\n\x05value\x18\x02 \x01(\x0b2*.inference.L'
    b'ogSettingsRequest.SettingValueR\x05value:\x028\x01"\xd9\x02\n\x13LogSettingsRespons'
    b'e\x12H\n\x08settings\x18\x01 \x03(\x0b2,.inference.LogSettingsResponse.SettingsEntr'
    b'yR\x08settings\x1a\x8d\x01\n\x0cSettingValue\x12\x1f\n\nbool_param\x18\x01 \x01(\x08H\x00R\tboolParam\x12#\n'
    b'\x0cuint32_param\x18\x02 \x01(\rH\x00R\x0buint32Param\x12#\n\x0cstring_param\x18\x03 \x01(\tH\x00R\x0bstri'
    b'ngParamB\x12\n\x10parameter_choice\x1ah\n\rSettingsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12A'
    b'\n\x05value\x18\x02 \x01(\x0b2+.inference.LogSettingsResponse.SettingValueR\x05valu'
    b'e:\x028\x01"B\n\x12ModelConfigRequest\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x18\n\x07version\x18\x02 \x01(\t'
    b'R\x07version"E\n\x13ModelConfigResponse\x12.\n\x06config\x18\x01 \x01(\x0b2\x16.inference.Mod'
    b'elConfigR\x06config"\x81\x03\n\nModelInput\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x120\n\tdata_type'
    b'\x18\x02 \x01(\x0e2\x13.inference.DataTypeR\x08dataType\x124\n\x06format\x18\x03 \x01(\x0e2\x1c.inferenc'
    b'e.ModelInput.FormatR\x06format\x12\x12\n\x04dims\x18\x04 \x03(\x03R\x04dims\x12&\n\x0fis_shape_tens'
    b'or\x18\x06 \x01(\x08R\risShapeTensor\x12,\n\x12allow_ragged_batch\x18\x07 \x01(\x08R\x10allowRagged'
    b'Batch\x12\x1a\n\x08optional\x18\x08 \x01(\x08R\x08optional\x124\n\x17is_non_linear_format_io\x18\t \x01'
    b'(\x08R\x13isNonLinearFormatIo";\n\x06Format\x12\x0f\n\x0bFORMAT_NONE\x10\x00\x12\x0f\n\x0bFORMAT_NHW'
    b'C\x10\x01\x12\x0f\n\x0bFORMAT_NCHW\x10\x02"\xec\x01\n\x0bModelOutput\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x120\n\tdata'
    b'_type\x18\x02 \x01(\x0e2\x13.inference.DataTypeR\x08dataType\x12\x12\n\x04dims\x18\x03 \x03(\x03R\x04dims\x12%'
    b'\n\x0elabel_filename\x18\x04 \x01(\tR\rlabelFilename\x12&\n\x0fis_shape_tensor\x18\x06 \x01(\x08R\r'
    b'isShapeTensor\x124\n\x17is_non_linear_format_io\x18\x07 \x01(\x08R\x13isNonLinearForma'
    b'tIo"\xbe\x02\n\x12ModelVersionPolicy\x12>\n\x06latest\x18\x01 \x01(\x0b2$.inference.ModelVers'
    b'ionPolicy.LatestH\x00R\x06latest\x125\n\x03all\x18\x02 \x01(\x0b2!.inference.ModelVersion'
    b'Policy.AllH\x00R\x03all\x12D\n\x08specific\x18\x03 \x01(\x0b2&.inference.ModelVersionPoli'
    b'cy.SpecificH\x00R\x08specific\x1a+\n\x06Latest\x12!\n\x0cnum_versions\x18\x01 \x01(\rR\x0bnumVers'
    b'ions\x1a\x05\n\x03All\x1a&\n\x08Specific\x12\x1a\n\x08versions\x18\x01 \x03(\x03R\x08versionsB\x0f\n\rpolicy_ch'
    b'oice"\xa2\x02\n\x12ModelInstanceGroup\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x14\n\x05count\x18\x02 \x01(\x05R\x05'
    b'count\x12\x12\n\x04gpus\x18\x03 \x03(\x05R\x04gpus\x126\n\x04kind\x18\x04 \x01(\x0e2".inference.ModelInstanc'
    b'eGroup.KindR\x04kind\x12\x18\n\x07profile\x18\x05 \x03(\tR\x07profile\x12\x18\n\x07passive\x18\x07 \x01(\x08R\x07pa'
    b'ssive\x12\x1f\n\x0bhost_policy\x18\t \x01(\tR\nhostPolicy"A\n\x04Kind\x12\r\n\tKIND_AUTO\x10\x00\x12\x0c\n'
    b'\x08KIND_GPU\x10\x01\x12\x0c\n\x08KIND_CPU\x10\x02\x12\x0e\n\nKIND_MODEL\x10\x03"\xaa\x02\n\x10ModelQueuePolicy\x12P'
    b'\n\x0etimeout_action\x18\x01 \x01(\x0e2).inference.ModelQueuePolicy.TimeoutActio'
    b'nR\rtimeoutAction\x12@\n\x1cdefault_timeout_microseconds\x18\x02 \x01(\x04R\x1adefaultT'
    b'imeoutMicroseconds\x124\n\x16allow_timeout_override\x18\x03 \x01(\x08R\x14allowTimeout'
    b'Override\x12$\n\x0emax_queue_size\x18\x04 \x01(\rR\x0cmaxQueueSize"&\n\rTimeoutAction\x12'
    b'\n\n\x06REJECT\x10\x00\x12\t\n\x05DELAY\x10\x01"\xb7\x04\n\x14ModelDynamicBatching\x120\n\x14preferred_bat'
    b'ch_size\x18\x01 \x03(\x05R\x12preferredBatchSize\x12?\n\x1cmax_queue_delay_microsecond'
    b's\x18\x02 \x01(\x04R\x19maxQueueDelayMicroseconds\x12+\n\x11preserve_ordering\x18\x03 \x01(\x08R\x10p'
    b"reserveOrdering\x12'\n\x0fpriority_levels\x18\x04 \x01(\x04R\x0epriorityLevels\x124\n\x16defa"
    b'ult_priority_level\x18\x05 \x01(\x04R\x14defaultPriorityLevel\x12M\n\x14default_queue_'
    b'policy\x18\x06 \x01(\x0b2\x1b.inference.ModelQueuePolicyR\x12defaultQueuePolicy\x12l\n'
    b'\x15priority_queue_policy\x18\x07 \x03(\x0b28.inference.ModelDynamicBatching.Pr'
    b'iorityQueuePolicyEntryR\x13priorityQueuePolicy\x1ac\n\x18PriorityQueuePoli'
    b'cyEntry\x12\x10\n\x03key\x18\x01 \x01(\x04R\x03key\x121\n\x05value\x18\x02 \x01(\x0b2\x1b.inference.ModelQueueP'
    b'olicyR\x05value:\x028\x01"\xdb\t\n\x15ModelSequenceBatching\x12C\n\x1emax_sequence_idle_'
    b'microseconds\x18\x01 \x01(\x04R\x1bmaxSequenceIdleMicroseconds\x12R\n\rcontrol_input'
    b'\x18\x02 \x03(\x0b2-.inference.ModelSequenceBatching.ControlInputR\x0ccontrolIn'
    b'put\x12I\n\x06direct\x18\x03 \x01(\x0b2/.inference.ModelSequenceBatching.StrategyDi'
    b'rectH\x00R\x06direct\x12I\n\x06oldest\x18\x04 \x01(\x0b2/.inference.ModelSequenceBatching'
    b'.StrategyOldestH\x00R\x06oldest\x12-\n\x12iterative_sequence\x18\x06 \x01(\x08R\x11iterative'
    b'Sequence\x1a\xef\x02\n\x07Control\x12A\n\x04kind\x18\x01 \x01(\x0e2-.inference.ModelSequenceBatc'
    b'hing.Control.KindR\x04kind\x12(\n\x10int32_false_true\x18\x02 \x03(\x05R\x0eint32FalseTru'
    b'e\x12&\n\x0ffp32_false_true\x18\x03 \x03(\x02R\rfp32FalseTrue\x120\n\tdata_type\x18\x04 \x01(\x0e2\x13.i'
    b'nference.DataTypeR\x08dataType\x12&\n\x0fbool_false_true\x18\x05 \x03(\x08R\rboolFalseT'
    b'rue"u\n\x04Kind\x12\x1a\n\x16CONTROL_SEQUENCE_START\x10\x00\x12\x1a\n\x16CONTROL_SEQUENCE_READ'
    b'Y\x10\x01\x12\x18\n\x14CONTROL_SEQUENCE_END\x10\x02\x12\x1b\n\x17CONTROL_SEQUENCE_CORRID\x10\x03\x1af\n\x0cCo'
    b'ntrolInput\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12B\n\x07control\x18\x02 \x03(\x0b2(.inference.Mode'
    b'lSequenceBatching.ControlR\x07control\x1a\x8b\x01\n\x0eStrategyDirect\x12?\n\x1cmax_que'
    b'ue_delay_microseconds\x18\x01 \x01(\x04R\x19maxQueueDelayMicroseconds\x128\n\x18minimu'
    b'm_slot_utilization\x18\x02 \x01(\x02R\x16minimumSlotUtilization\x1a\xe8\x01\n\x0eStrategyOld'
    b'est\x126\n\x17max_candidate_sequences\x18\x01 \x01(\x05R\x15maxCandidateSequences\x120\n\x14p'
    b'referred_batch_size\x18\x02 \x03(\x05R\x12preferredBatchSize\x12?\n\x1cmax_queue_delay'
    b'_microseconds\x18\x03 \x01(\x04R\x19maxQueueDelayMicroseconds\x12+\n\x11preserve_order'
    b'ing\x18\x04 \x01(\x08R\x10preserveOrderingB\x11\n\x0fstrategy_choice"\xd2\x03\n\x0fModelEnsembli'
    b'ng\x123\n\x04step\x18\x01 \x03(\x0b2\x1f.inference.ModelEnsembling.StepR\x04step\x1a\x89\x03\n\x04Step'
    b'\x12\x1d\n\nmodel_name\x18\x01 \x01(\tR\tmodelName\x12#\n\rmodel_version\x18\x02 \x01(\x03R\x0cmodelVer'
    b'sion\x12J\n\tinput_map\x18\x03 \x03(\x0b2-.inference.ModelEnsembling.Step.InputMa'
    b'pEntryR\x08inputMap\x12M\n\noutput_map\x18\x04 \x03(\x0b2..inference.ModelEnsembling'
    b".Step.OutputMapEntryR\toutputMap\x12'\n\x0fmodel_namespace\x18\x05 \x01(\tR\x0emodelN"
    b'amespace\x1a;\n\rInputMapEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\tR\x05valu'
    b'e:\x028\x01\x1a<\n\x0eOutputMapEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\tR\x05value:'
    b'\x028\x01"3\n\x0eModelParameter\x12!\n\x0cstring_value\x18\x01 \x01(\tR\x0bstringValue"6\n\x16Mode'
    b'lTransactionPolicy\x12\x1c\n\tdecoupled\x18\x01 \x01(\x08R\tdecoupled",\n\x12ModelRespons'
    b'eCache\x12\x16\n\x06enable\x18\x01 \x01(\x08R\x06enable"\x0c\n\nBatchInput"\r\n\x0bBatchOutput"\xf1\x08\n\x0b'
    b'ModelConfig\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1a\n\x08platform\x18\x02 \x01(\tR\x08platform\x12D\n\x0ev'
    b'ersion_policy\x18\x03 \x01(\x0b2\x1d.inference.ModelVersionPolicyR\rversionPolic'
    b'y\x12$\n\x0emax_batch_size\x18\x04 \x01(\x05R\x0cmaxBatchSize\x12+\n\x05input\x18\x05 \x03(\x0b2\x15.inferen'
    b'ce.ModelInputR\x05input\x12.\n\x06output\x18\x06 \x03(\x0b2\x16.inference.ModelOutputR\x06ou'
    b'tput\x12D\n\x0einstance_group\x18\x07 \x03(\x0b2\x1d.inference.ModelInstanceGroupR\rins'
    b'tanceGroup\x124\n\x16default_model_filename\x18\x08 \x01(\tR\x14defaultModelFilename'
    b'\x12L\n\x10dynamic_batching\x18\x0b \x01(\x0b2\x1f.inference.ModelDynamicBatchingH\x00R\x0fd'
    b'ynamicBatching\x12O\n\x11sequence_batching\x18\r \x01(\x0b2 .inference.ModelSeque'
    b'nceBatchingH\x00R\x10sequenceBatching\x12M\n\x13ensemble_scheduling\x18\x0f \x01(\x0b2\x1a.i'
    b'nference.ModelEnsemblingH\x00R\x12ensembleScheduling\x12F\n\nparameters\x18\x0e \x03'
    b'(\x0b2&.inference.ModelConfig.ParametersEntryR\nparameters\x12\x18\n\x07backen'
    b'd\x18\x11 \x01(\tR\x07backend\x12[\n\x18model_transaction_policy\x18\x13 \x01(\x0b2!.inference.M'
    b'odelTransactionPolicyR\x16modelTransactionPolicy\x126\n\x0bbatch_input\x18\x14 \x03'
    b'(\x0b2\x15.inference.BatchInputR\nbatchInput\x129\n\x0cbatch_output\x18\x15 \x03(\x0b2\x16.in'
    b'ference.BatchOutputR\x0bbatchOutput\x12D\n\x0eresponse_cache\x18\x18 \x01(\x0b2\x1d.infer'
    b'ence.ModelResponseCacheR\rresponseCache\x12\x18\n\x07runtime\x18\x19 \x01(\tR\x07runtime'
    b'\x1aX\n\x0fParametersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12/\n\x05value\x18\x02 \x01(\x0b2\x19.inference'
    b'.ModelParameterR\x05value:\x028\x01B\x13\n\x11scheduling_choice*\xfa\x01\n\x08DataType\x12\x10\n\x0c'
    b'TYPE_INVALID\x10\x00\x12\r\n\tTYPE_BOOL\x10\x01\x12\x0e\n\nTYPE_UINT8\x10\x02\x12\x0f\n\x0bTYPE_UINT16\x10\x03\x12\x0f'
    b'\n\x0bTYPE_UINT32\x10\x04\x12\x0f\n\x0bTYPE_UINT64\x10\x05\x12\r\n\tTYPE_INT8\x10\x06\x12\x0e\n\nTYPE_INT16\x10\x07\x12'
    b'\x0e\n\nTYPE_INT32\x10\x08\x12\x0e\n\nTYPE_INT64\x10\t\x12\r\n\tTYPE_FP16\x10\n\x12\r\n\tTYPE_FP32\x10\x0b\x12\r\n'
    b'\tTYPE_FP64\x10\x0c\x12\x0f\n\x0bTYPE_STRING\x10\r\x12\r\n\tTYPE_BF16\x10\x0e2\x8e\x0f\n\x14GRPCInferenceSe'
    b'rvice\x12I\n\nServerLive\x12\x1c.inference.ServerLiveRequest\x1a\x1d.inference.Se'
    b'rverLiveResponse\x12L\n\x0bServerReady\x12\x1d.inference.ServerReadyRequest\x1a\x1e'
    b'.inference.ServerReadyResponse\x12I\n\nModelReady\x12\x1c.inference.ModelRe'
    b'adyRequest\x1a\x1d.inference.ModelReadyResponse\x12U\n\x0eServerMetadata\x12 .in'
    b'ference.ServerMetadataRequest\x1a!.inference.ServerMetadataResponse'
    b'\x12R\n\rModelMetadata\x12\x1f.inference.ModelMetadataRequest\x1a .inference.M'
    b'odelMetadataResponse\x12I\n\nModelInfer\x12\x1c.inference.ModelInferRequest'
    b'\x1a\x1d.inference.ModelInferResponse\x12Y\n\x10ModelStreamInfer\x12\x1c.inference.'
    b'ModelInferRequest\x1a#.inference.ModelStreamInferResponse(\x010\x01\x12L\n\x0bMo'
    b'delConfig\x12\x1d.inference.ModelConfigRequest\x1a\x1e.inference.ModelConfig'
    b'Response\x12X\n\x0fModelStatistics\x12!.inference.ModelStatisticsRequest\x1a"'
    b'.inference.ModelStatisticsResponse\x12X\n\x0fRepositoryIndex\x12!.inferenc'
    b'e.RepositoryIndexRequest\x1a".inference.RepositoryIndexResponse\x12d\n\x13'
    b'RepositoryModelLoad\x12%.inference.RepositoryModelLoadRequest\x1a&.inf'
    b"erence.RepositoryModelLoadResponse\x12j\n\x15RepositoryModelUnload\x12'.in"
    b'ference.RepositoryModelUnloadRequest\x1a(.inference.RepositoryModel'
    b'UnloadResponse\x12s\n\x18SystemSharedMemoryStatus\x12*.inference.SystemSha'
    b'redMemoryStatusRequest\x1a+.inference.SystemSharedMemoryStatusRespo'
    b'nse\x12y\n\x1aSystemSharedMemoryRegister\x12,.inference.SystemSharedMemory'
    b'RegisterRequest\x1a-.inference.SystemSharedMemoryRegisterResponse\x12\x7f'
    b'\n\x1cSystemSharedMemoryUnregister\x12..inference.SystemSharedMemoryUnr'
    b'egisterRequest\x1a/.inference.SystemSharedMemoryUnregisterResponse\x12'
    b'm\n\x16CudaSharedMemoryStatus\x12(.inference.CudaSharedMemoryStatusRequ'
    b'est\x1a).inference.CudaSharedMemoryStatusResponse\x12s\n\x18CudaSharedMemo'
    b'ryRegister\x12*.inference.CudaSharedMemoryRegisterRequest\x1a+.inferen'
    b'ce.CudaSharedMemoryRegisterResponse\x12y\n\x1aCudaSharedMemoryUnregiste'
    b'r\x12,.inference.CudaSharedMemoryUnregisterRequest\x1a-.inference.Cuda'
    b'SharedMemoryUnregisterResponse\x12O\n\x0cTraceSetting\x12\x1e.inference.Trace'
    b'SettingRequest\x1a\x1f.inference.TraceSettingResponse\x12L\n\x0bLogSettings\x12\x1d'
    b'.inference.LogSettingsRequest\x1a\x1e.inference.LogSettingsResponseb\x06p'
    b'roto3'
)
DESCRIPTOR = _pool.FindFileByName("inference.proto")


def _message(descriptor):
    made = message_factory.GetMessageClass(descriptor)
    for nested in descriptor.nested_types:
        if not hasattr(made, nested.name):  # only protobuf without its C extension leaves them out
            setattr(made, nested.name, _message(nested))
    return made


_messages = DESCRIPTOR.message_types_by_name
_enums = DESCRIPTOR.enum_types_by_name

ServerLiveRequest = _message(_messages["ServerLiveRequest"])
ServerLiveResponse = _message(_messages["ServerLiveResponse"])
ServerReadyRequest = _message(_messages["ServerReadyRequest"])
ServerReadyResponse = _message(_messages["ServerReadyResponse"])
ModelReadyRequest = _message(_messages["ModelReadyRequest"])
ModelReadyResponse = _message(_messages["ModelReadyResponse"])
ServerMetadataRequest = _message(_messages["ServerMetadataRequest"])
ServerMetadataResponse = _message(_messages["ServerMetadataResponse"])
ModelMetadataRequest = _message(_messages["ModelMetadataRequest"])
ModelMetadataResponse = _message(_messages["ModelMetadataResponse"])
InferParameter = _message(_messages["InferParameter"])
InferTensorContents = _message(_messages["InferTensorContents"])
ModelInferRequest = _message(_messages["ModelInferRequest"])
ModelInferResponse = _message(_messages["ModelInferResponse"])
ModelStreamInferResponse = _message(_messages["ModelStreamInferResponse"])
ModelStatisticsRequest = _message(_messages["ModelStatisticsRequest"])
StatisticDuration = _message(_messages["StatisticDuration"])
InferStatistics = _message(_messages["InferStatistics"])
InferResponseStatistics = _message(_messages["InferResponseStatistics"])
InferBatchStatistics = _message(_messages["InferBatchStatistics"])
MemoryUsage = _message(_messages["MemoryUsage"])
ModelStatistics = _message(_messages["ModelStatistics"])
ModelStatisticsResponse = _message(_messages["ModelStatisticsResponse"])
ModelRepositoryParameter = _message(_messages["ModelRepositoryParameter"])
RepositoryIndexRequest = _message(_messages["RepositoryIndexRequest"])
RepositoryIndexResponse = _message(_messages["RepositoryIndexResponse"])
RepositoryModelLoadRequest = _message(_messages["RepositoryModelLoadRequest"])
RepositoryModelLoadResponse = _message(_messages["RepositoryModelLoadResponse"])
RepositoryModelUnloadRequest = _message(_messages["RepositoryModelUnloadRequest"])
RepositoryModelUnloadResponse = _message(_messages["RepositoryModelUnloadResponse"])
SystemSharedMemoryStatusRequest = _message(_messages["SystemSharedMemoryStatusRequest"])
SystemSharedMemoryStatusResponse = _message(_messages["SystemSharedMemoryStatusResponse"])
SystemSharedMemoryRegisterRequest = _message(_messages["SystemSharedMemoryRegisterRequest"])
SystemSharedMemoryRegisterResponse = _message(_messages["SystemSharedMemoryRegisterResponse"])
SystemSharedMemoryUnregisterRequest = _message(_messages["SystemSharedMemoryUnregisterRequest"])
SystemSharedMemoryUnregisterResponse = _message(_messages["SystemSharedMemoryUnregisterResponse"])
CudaSharedMemoryStatusRequest = _message(_messages["CudaSharedMemoryStatusRequest"])
CudaSharedMemoryStatusResponse = _message(_messages["CudaSharedMemoryStatusResponse"])
CudaSharedMemoryRegisterRequest = _message(_messages["CudaSharedMemoryRegisterRequest"])
CudaSharedMemoryRegisterResponse = _message(_messages["CudaSharedMemoryRegisterResponse"])
CudaSharedMemoryUnregisterRequest = _message(_messages["CudaSharedMemoryUnregisterRequest"])
CudaSharedMemoryUnregisterResponse = _message(_messages["CudaSharedMemoryUnregisterResponse"])
TraceSettingRequest = _message(_messages["TraceSettingRequest"])
TraceSettingResponse = _message(_messages["TraceSettingResponse"])
LogSettingsRequest = _message(_messages["LogSettingsRequest"])
LogSettingsResponse = _message(_messages["LogSettingsResponse"])
ModelConfigRequest = _message(_messages["ModelConfigRequest"])
ModelConfigResponse = _message(_messages["ModelConfigResponse"])
ModelInput = _message(_messages["ModelInput"])
ModelOutput = _message(_messages["ModelOutput"])
ModelVersionPolicy = _message(_messages["ModelVersionPolicy"])
ModelInstanceGroup = _message(_messages["ModelInstanceGroup"])
ModelQueuePolicy = _message(_messages["ModelQueuePolicy"])
ModelDynamicBatching = _message(_messages["ModelDynamicBatching"])
ModelSequenceBatching = _message(_messages["ModelSequenceBatching"])
ModelEnsembling = _message(_messages["ModelEnsembling"])
ModelParameter = _message(_messages["ModelParameter"])
ModelTransactionPolicy = _message(_messages["ModelTransactionPolicy"])
ModelResponseCache = _message(_messages["ModelResponseCache"])
BatchInput = _message(_messages["BatchInput"])
BatchOutput = _message(_messages["BatchOutput"])
ModelConfig = _message(_messages["ModelConfig"])
DataType = enum_type_wrapper.EnumTypeWrapper(_enums["DataType"])
TYPE_INVALID = 0
TYPE_BOOL = 1
TYPE_UINT8 = 2
TYPE_UINT16 = 3
TYPE_UINT32 = 4
TYPE_UINT64 = 5
TYPE_INT8 = 6
TYPE_INT16 = 7
TYPE_INT32 = 8
TYPE_INT64 = 9
TYPE_FP16 = 10
TYPE_FP32 = 11
TYPE_FP64 = 12
TYPE_STRING = 13
TYPE_BF16 = 14
