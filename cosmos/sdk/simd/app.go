package simd

import (
	"cosmossdk.io/depinject"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/runtime"
	"github.com/cosmos/cosmos-sdk/server"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
	"github.com/starling-kv/starling/cosmos/sdk/serve"
)

// flagServe is the flag of `simd start` that wraps the application.
const flagServe = "serve"

// New returns the stock application. It panics on errors, as the SDK's creators do.
func New(logger generation.Logger, db dbm.DB, options servertypes.AppOptions) servertypes.Application {
	var builder *runtime.AppBuilder
	if err := depinject.Inject(depinject.Configs(modules(), depinject.Supply(logger, options)), &builder); err != nil {
		panic(err)
	}
	app := generation.Build(builder, db, server.DefaultBaseappOptions(options)...)
	if err := app.Load(true); err != nil {
		panic(err)
	}
	return app
}

// Creator returns the stock application, wrapped if the flag serve is set.
func Creator(logger generation.Logger, db dbm.DB, options servertypes.AppOptions) servertypes.Application {
	create := generation.Creator(New)
	if cast.ToBool(options.Get(flagServe)) {
		create = serve.Creator(create) // the line that a chain adds
	}
	return generation.Create(create, logger, db, options)
}
