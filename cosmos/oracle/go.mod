module github.com/starling-kv/starling/cosmos/oracle

go 1.26.0

require (
	github.com/cosmos/iavl v1.3.6
	github.com/starling-kv/starling v0.0.0
	github.com/starling-kv/starling/cosmos v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	cosmossdk.io/core v0.12.1-0.20240725072823-6a2d039e1212 // indirect
	github.com/cosmos/gogoproto v1.7.2 // indirect
	github.com/cosmos/ics23/go v0.11.0 // indirect
	github.com/emicklei/dot v1.11.0 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/snappy v1.0.1-0.20260716114414-9ae09f520e93 // indirect
	github.com/google/btree v1.1.3 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/klauspost/cpuid/v2 v2.3.0 // indirect
	github.com/syndtr/goleveldb v1.0.1-0.20220721030215-126854af5e6d // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/starling-kv/starling => ../..
	github.com/starling-kv/starling/cosmos => ..
)
