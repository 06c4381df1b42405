module github.com/starling-kv/starling/cosmos/iavlsync/oracle/old

go 1.26.0

require (
	github.com/cometbft/cometbft-db v0.7.0
	github.com/cosmos/iavl v0.20.1
	github.com/starling-kv/starling/cosmos v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/confio/ics23/go v0.9.0 // indirect
	github.com/gogo/protobuf v1.3.2 // indirect
	github.com/golang/snappy v0.0.4 // indirect
	github.com/google/btree v1.1.2 // indirect
	github.com/syndtr/goleveldb v1.0.1-0.20200815110645-5c35d600f0ca // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.4.0 // indirect
)

replace github.com/starling-kv/starling/cosmos => ../../..
