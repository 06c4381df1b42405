package simd

import (
	"errors"
	"os"
	"path/filepath"

	"cosmossdk.io/depinject"
	cmtcfg "github.com/cometbft/cometbft/config"
	"github.com/cosmos/cosmos-sdk/client"
	clientconfig "github.com/cosmos/cosmos-sdk/client/config"
	"github.com/cosmos/cosmos-sdk/client/flags"
	"github.com/cosmos/cosmos-sdk/client/keys"
	"github.com/cosmos/cosmos-sdk/client/snapshot"
	"github.com/cosmos/cosmos-sdk/codec"
	codectypes "github.com/cosmos/cosmos-sdk/codec/types"
	"github.com/cosmos/cosmos-sdk/server"
	serverconfig "github.com/cosmos/cosmos-sdk/server/config"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
	"github.com/cosmos/cosmos-sdk/types/module"
	authtypes "github.com/cosmos/cosmos-sdk/x/auth/types"
	bankcli "github.com/cosmos/cosmos-sdk/x/bank/client/cli"
	"github.com/cosmos/cosmos-sdk/x/genutil"
	genutilcli "github.com/cosmos/cosmos-sdk/x/genutil/client/cli"
	genutiltypes "github.com/cosmos/cosmos-sdk/x/genutil/types"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/cosmos/sdk/internal/generation"
)

// envPrefix is the prefix of environment variables that set flags.
const envPrefix = "SIMD"

var errNoExport = errors.New("export is not supported: this chain is for tests")

// DefaultHome returns the default of --home, which is that of the SDK's simd.
func DefaultHome() string {
	user, err := os.UserHomeDir()
	if err != nil {
		user = "."
	}
	return filepath.Join(user, ".simapp")
}

// Command returns the root command of a node whose application newApp creates.
func Command(newApp servertypes.AppCreator) (*cobra.Command, error) {
	var basics module.BasicManager
	var (
		cdc      codec.Codec
		registry codectypes.InterfaceRegistry
		txConfig client.TxConfig
		amino    *codec.LegacyAmino
	)
	// The genesis commands require this type.
	custom := map[string]module.AppModuleBasic{genutiltypes.ModuleName: genutil.NewAppModuleBasic(genutiltypes.DefaultMessageValidator)}
	if err := depinject.Inject(depinject.Configs(modules(), depinject.Supply(generation.NewNopLogger(), custom)),
		&basics, &cdc, &registry, &txConfig, &amino); err != nil {
		return nil, err
	}
	home := DefaultHome()
	context := client.Context{}.WithCodec(cdc).WithInterfaceRegistry(registry).WithTxConfig(txConfig).WithLegacyAmino(amino).
		WithInput(os.Stdin).WithAccountRetriever(authtypes.AccountRetriever{}).WithHomeDir(home).WithViper(envPrefix)
	root := &cobra.Command{
		Use: appName, Short: "a small chain of the Cosmos SDK, for tests", SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.OutOrStdout())
			cmd.SetErr(cmd.ErrOrStderr())
			here, err := client.ReadPersistentCommandFlags(context.WithCmdContext(cmd.Context()), cmd.Flags())
			if err != nil {
				return err
			}
			if here, err = clientconfig.ReadFromClientConfig(here); err != nil {
				return err
			}
			if err := client.SetCmdClientContextHandler(here, cmd); err != nil {
				return err
			}
			app := serverconfig.DefaultConfig()
			app.MinGasPrices = "0stake"
			return server.InterceptConfigsPreRunHandler(cmd, serverconfig.DefaultConfigTemplate, app, cmtcfg.DefaultConfig())
		},
	}
	tx := &cobra.Command{Use: "tx", Short: "transactions", RunE: client.ValidateCmd}
	tx.AddCommand(bankcli.NewTxCmd(txConfig.SigningContext().AddressCodec()))
	tx.PersistentFlags().String(flags.FlagChainID, "", "chain id")
	root.AddCommand(genutilcli.InitCmd(basics, home), genutilcli.Commands(txConfig, basics, home), keys.Commands(),
		server.StatusCommand(), snapshot.Cmd(newApp), tx)
	server.AddCommands(root, home, newApp, generation.RefuseExport(errNoExport), func(start *cobra.Command) {
		start.Flags().Bool(flagServe, false, "serve the states of snapshot heights in verified chunks, and join from such chunks")
	})
	return root, nil
}
