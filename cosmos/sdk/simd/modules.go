package simd

import (
	runtimev1 "cosmossdk.io/api/cosmos/app/runtime/v1alpha1"
	appv1 "cosmossdk.io/api/cosmos/app/v1alpha1"
	authv1 "cosmossdk.io/api/cosmos/auth/module/v1"
	bankv1 "cosmossdk.io/api/cosmos/bank/module/v1"
	consensusv1 "cosmossdk.io/api/cosmos/consensus/module/v1"
	distributionv1 "cosmossdk.io/api/cosmos/distribution/module/v1"
	genutilv1 "cosmossdk.io/api/cosmos/genutil/module/v1"
	mintv1 "cosmossdk.io/api/cosmos/mint/module/v1"
	slashingv1 "cosmossdk.io/api/cosmos/slashing/module/v1"
	stakingv1 "cosmossdk.io/api/cosmos/staking/module/v1"
	txv1 "cosmossdk.io/api/cosmos/tx/config/v1"
	"cosmossdk.io/core/appconfig"
	"cosmossdk.io/depinject"
	authtypes "github.com/cosmos/cosmos-sdk/x/auth/types"
	banktypes "github.com/cosmos/cosmos-sdk/x/bank/types"
	consensustypes "github.com/cosmos/cosmos-sdk/x/consensus/types"
	distributiontypes "github.com/cosmos/cosmos-sdk/x/distribution/types"
	genutiltypes "github.com/cosmos/cosmos-sdk/x/genutil/types"
	minttypes "github.com/cosmos/cosmos-sdk/x/mint/types"
	slashingtypes "github.com/cosmos/cosmos-sdk/x/slashing/types"
	stakingtypes "github.com/cosmos/cosmos-sdk/x/staking/types"
	"github.com/cosmos/gogoproto/proto"

	// Each module registers itself for the configuration below.
	_ "github.com/cosmos/cosmos-sdk/x/auth"
	_ "github.com/cosmos/cosmos-sdk/x/auth/tx/config"
	_ "github.com/cosmos/cosmos-sdk/x/bank"
	_ "github.com/cosmos/cosmos-sdk/x/consensus"
	_ "github.com/cosmos/cosmos-sdk/x/distribution"
	_ "github.com/cosmos/cosmos-sdk/x/genutil"
	_ "github.com/cosmos/cosmos-sdk/x/mint"
	_ "github.com/cosmos/cosmos-sdk/x/slashing"
	_ "github.com/cosmos/cosmos-sdk/x/staking"
)

const appName = "simd"

// txName is the name of the module that configures transactions. It has no store.
const txName = "tx"

// keyRotationPool is the account that collects the fees of validator key rotations in SDK v0.55. It
// is unused in SDK v0.53.
const keyRotationPool = "key_rotation_fee_pool"

// modules returns the chain's configuration: its modules, and the order in which they run in a
// block.
func modules() depinject.Config {
	mint := configured(minttypes.ModuleName, &mintv1.Module{})
	// Mint's own keeper also implements the interface that mint needs from staking, so depinject
	// needs an explicit binding.
	mint.GolangBindings = []*appv1.GolangBinding{{
		InterfaceType:  "github.com/cosmos/cosmos-sdk/x/mint/types/types.StakingKeeper",
		Implementation: "github.com/cosmos/cosmos-sdk/x/staking/keeper/*keeper.Keeper",
	}}
	return appconfig.Compose(&appv1.Config{Modules: []*appv1.ModuleConfig{
		configured("runtime", &runtimev1.Module{
			AppName:       appName,
			BeginBlockers: []string{minttypes.ModuleName, distributiontypes.ModuleName, slashingtypes.ModuleName, stakingtypes.ModuleName},
			EndBlockers:   []string{banktypes.ModuleName, stakingtypes.ModuleName},
			// The genesis transactions of genutil need all other modules initialized.
			InitGenesis: []string{
				authtypes.ModuleName, banktypes.ModuleName, distributiontypes.ModuleName, stakingtypes.ModuleName,
				slashingtypes.ModuleName, minttypes.ModuleName, consensustypes.ModuleName, genutiltypes.ModuleName,
			},
			OverrideStoreKeys: []*runtimev1.StoreKeyConfig{{ModuleName: authtypes.ModuleName, KvStoreKey: "acc"}},
			SkipStoreKeys:     []string{txName},
		}),
		configured(authtypes.ModuleName, &authv1.Module{
			Bech32Prefix: "cosmos",
			ModuleAccountPermissions: []*authv1.ModuleAccountPermission{
				{Account: authtypes.FeeCollectorName},
				{Account: distributiontypes.ModuleName},
				{Account: minttypes.ModuleName, Permissions: []string{authtypes.Minter}},
				{Account: stakingtypes.BondedPoolName, Permissions: []string{authtypes.Burner, authtypes.Staking}},
				{Account: stakingtypes.NotBondedPoolName, Permissions: []string{authtypes.Burner, authtypes.Staking}},
				{Account: keyRotationPool, Permissions: []string{authtypes.Burner}},
			},
		}),
		configured(banktypes.ModuleName, &bankv1.Module{}),
		configured(consensustypes.ModuleName, &consensusv1.Module{}),
		configured(distributiontypes.ModuleName, &distributionv1.Module{}),
		configured(genutiltypes.ModuleName, &genutilv1.Module{}),
		mint,
		configured(slashingtypes.ModuleName, &slashingv1.Module{}),
		configured(stakingtypes.ModuleName, &stakingv1.Module{}),
		configured(txName, &txv1.Config{}),
	}})
}

func configured(name string, config proto.Message) *appv1.ModuleConfig {
	return &appv1.ModuleConfig{Name: name, Config: appconfig.WrapAny(config)}
}
