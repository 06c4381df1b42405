module github.com/starling-kv/starling/cosmos/serve

go 1.26.0

require (
	github.com/starling-kv/starling v0.0.0
	github.com/starling-kv/starling/cosmos v0.0.0
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace (
	github.com/starling-kv/starling => ../..
	github.com/starling-kv/starling/cosmos => ..
)
