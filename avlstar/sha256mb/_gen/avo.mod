// For -modfile: the generator is a package of the main module, whose own go.mod must not name avo.
module github.com/starling-kv/starling

go 1.26.0

require github.com/mmcloughlin/avo v0.6.0

require (
	golang.org/x/mod v0.37.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/tools v0.47.0 // indirect
)
