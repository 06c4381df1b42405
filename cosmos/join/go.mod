module github.com/starling-kv/starling/cosmos/join

go 1.26.0

require (
	github.com/starling-kv/starling v0.0.0
	github.com/starling-kv/starling/cosmos v0.0.0
	github.com/starling-kv/starling/cosmos/serve v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/time v0.12.0 // indirect
)

replace (
	github.com/starling-kv/starling => ../..
	github.com/starling-kv/starling/cosmos => ..
	github.com/starling-kv/starling/cosmos/serve => ../serve
)
