module github.com/starling-kv/starling/bench/ops

go 1.26.0
