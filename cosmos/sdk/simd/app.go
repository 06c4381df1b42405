package simd

import (
	"io"

	"cosmossdk.io/depinject"
	"cosmossdk.io/log"
	dbm "github.com/cosmos/cosmos-db"
	"github.com/cosmos/cosmos-sdk/runtime"
	"github.com/cosmos/cosmos-sdk/server"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/spf13/cast"

	"github.com/starling-kv/starling/cosmos/sdk/serve"
)

// flagServe is a flag of `simd start`: the application is wrapped.
const flagServe = "serve"

// New is the stock application. It panics if it cannot be made, as the SDK's creators do.
func New(logger log.Logger, db dbm.DB, trace io.Writer, options servertypes.AppOptions) servertypes.Application {
	var builder *runtime.AppBuilder
	if err := depinject.Inject(depinject.Configs(modules(), depinject.Supply(logger, options)), &builder); err != nil {
		panic(err)
	}
	app := builder.Build(db, trace, server.DefaultBaseappOptions(options)...)
	if err := app.Load(true); err != nil {
		panic(err)
	}
	return app
}

// Creator makes the stock application, and wraps it if the command line says so.
func Creator(logger log.Logger, db dbm.DB, trace io.Writer, options servertypes.AppOptions) servertypes.Application {
	create := servertypes.AppCreator(New)
	if cast.ToBool(options.Get(flagServe)) {
		create = serve.Creator(New) // the line that a chain adds
	}
	return create(logger, db, trace, options)
}
