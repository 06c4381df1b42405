package home

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	cfg "github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	cmttypes "github.com/cometbft/cometbft/types"
	cmttime "github.com/cometbft/cometbft/types/time"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/internal/durable"
	"github.com/starling-kv/starling/node/config"
)

// ErrInitialised: the folder has files of a node, which are not overwritten.
var ErrInitialised = errors.New("a node already exists")

// DefaultBlockBytes fits the largest transaction with evidence, and fits into a gRPC message (4
// MiB).
const DefaultBlockBytes = config.GRPCMessageBytes - config.GRPCEnvelope

// GenesisPower is the default voting power of a validator of a new network.
const GenesisPower = 10

// InitOptions configures a new home. Only Home is required.
type InitOptions struct {
	Home    string
	Moniker string // default: the host name
	// GenesisFile is the genesis file of an existing network, which is copied. ChainID and App are
	// then ignored.
	GenesisFile string
	ChainID     string // default: starling- and six random letters
	App         app.Genesis
	Network     config.Network // default: config.WAN
	// NoValidator: create no validator key, for a storage node. It requires GenesisFile.
	NoValidator bool
	// Edit changes the configuration before it is written; may be nil.
	Edit func(*cfg.Config, *config.App)
}

// InitResult describes the new home.
type InitResult struct {
	Home, ChainID, Moniker, NodeID string
	ValidatorPubKey                []byte // ed25519; nil: none
}

// Init creates the home folder of a new node: configuration, keys, and a genesis file with this
// node as its only validator. It never overwrites a file. After an error, such as a full disk, it
// removes everything that it created.
func Init(opts InitOptions) (result InitResult, err error) {
	conf, appConfig := config.DefaultCometBFT(), config.DefaultApp()
	if opts.Network == "" {
		opts.Network = config.WAN
	}
	config.Tune(opts.Network, conf, &appConfig)
	conf.SetRoot(opts.Home)
	conf.Moniker = opts.Moniker
	if conf.Moniker == "" {
		conf.Moniker = cfg.DefaultConfig().Moniker
	}
	if opts.Edit != nil {
		opts.Edit(conf, &appConfig)
	}
	for _, path := range initFiles(opts.Home, conf) {
		if _, err := os.Lstat(path); err == nil {
			return InitResult{}, fmt.Errorf("%w: %q exists: use another folder for --home, or move the old one away (a validator's key and signing state must never run twice)", ErrInitialised, path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return InitResult{}, err
		}
	}
	if opts.NoValidator && opts.GenesisFile == "" {
		return InitResult{}, config.Invalid(errors.New("a home without a validator needs the genesis file of an existing network"))
	}
	doc, err := initialGenesis(opts)
	if err != nil {
		return InitResult{}, err // before anything is written
	}
	var files, made []string // made has folders
	defer func() {
		if err != nil {
			result, err = InitResult{}, errors.Join(err, removeMade(files, made))
		}
	}()
	raw, err := EncodeGenesis(doc) // without its validator so far
	if err != nil {
		return InitResult{}, err
	}
	for _, dir := range initFolders(opts.Home) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			made = append(made, dir)
		}
		if err := os.MkdirAll(dir, cfg.DefaultDirPerm); err != nil {
			return InitResult{}, err
		}
		if err := checkRoom(dir, len(raw)+roomForFiles); err != nil {
			return InitResult{}, err
		}
	}
	// WriteConfigFile ends the process if it cannot write. Creating the files first returns an
	// error instead; checkRoom has checked the space.
	err = config.WriteApp(config.AppFile(opts.Home), appConfig)
	switch {
	case err == nil:
		files = initFiles(opts.Home, conf)
	case errors.Is(err, fs.ErrExist): // another Init is creating this home: remove nothing
		made = nil
	default:
		files = []string{config.AppFile(opts.Home)}
	}
	if err != nil {
		return InitResult{}, err
	}
	if err := os.WriteFile(config.CometFile(opts.Home), nil, 0o600); err != nil {
		return InitResult{}, err
	}
	cfg.WriteConfigFile(config.CometFile(opts.Home), conf)
	if err := explain(opts); err != nil {
		return InitResult{}, err
	}

	nodeKey, err := p2p.LoadOrGenNodeKey(conf.NodeKeyFile())
	if err != nil {
		return InitResult{}, err
	}
	result = InitResult{Home: opts.Home, ChainID: doc.ChainID, Moniker: conf.Moniker, NodeID: string(nodeKey.ID())}
	if !opts.NoValidator {
		validator := privval.GenFilePV(conf.PrivValidatorKeyFile(), conf.PrivValidatorStateFile())
		if err := saveValidator(validator); err != nil {
			return InitResult{}, err
		}
		result.ValidatorPubKey = validator.Key.PubKey.Bytes()
		if opts.GenesisFile == "" {
			doc.Validators = []cmttypes.GenesisValidator{{
				Address: validator.Key.PubKey.Address(), PubKey: validator.Key.PubKey, Power: GenesisPower, Name: conf.Moniker,
			}}
		}
	}
	return result, doc.SaveAs(conf.GenesisFile())
}

// explain adds the reasons of settings to config.toml.
func explain(opts InitOptions) error {
	path := config.CometFile(opts.Home)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return durable.Write(path, []byte(config.Explain(opts.Network, string(text))), 0o600)
}

// initFiles lists the files that Init creates.
func initFiles(home string, c *cfg.Config) []string {
	return []string{config.CometFile(home), config.AppFile(home), c.GenesisFile(), c.NodeKeyFile(), c.PrivValidatorKeyFile(), c.PrivValidatorStateFile()}
}

// initFolders lists the folders that Init creates, parents first.
func initFolders(home string) []string {
	return []string{home, filepath.Join(home, "config"), filepath.Join(home, "data")}
}

// removeMade removes the files created for a home, and its folders if they are empty afterwards.
func removeMade(files, folders []string) error {
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range slices.Backward(folders) {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() { // a link to a folder stays
			_ = os.Remove(dir) // only if it is empty
		}
	}
	return nil
}

// roomForFiles exceeds the space of a home's files other than the genesis file, in bytes.
const roomForFiles = 256 << 10

// checkRoom returns an error if a file of size bytes cannot be written to a folder. CometBFT's
// functions that write settings and keys would end the process instead.
func checkRoom(dir string, size int) error {
	f, err := os.CreateTemp(dir, "room-*")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, size))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

// saveValidator writes a validator's key and signing state.
func saveValidator(v *privval.FilePV) (err error) {
	defer func() {
		if cause := recover(); cause != nil { // privval/file.go
			err = fmt.Errorf("write the validator's key: %v", cause)
			if wrapped, is := cause.(error); is {
				err = fmt.Errorf("write the validator's key: %w", wrapped)
			}
		}
	}()
	v.Save()
	return nil
}

// initialGenesis creates the genesis document, without a validator so far, or reads the given one.
func initialGenesis(opts InitOptions) (*cmttypes.GenesisDoc, error) {
	if opts.GenesisFile != "" {
		return config.LoadGenesis(opts.GenesisFile)
	}
	if opts.App.SnapshotInterval == 0 {
		opts.App.SnapshotInterval = opts.Network.SnapshotInterval(app.DefaultSnapshotInterval)
	}
	state, err := appState(opts.App)
	if err != nil {
		return nil, err
	}
	doc := &cmttypes.GenesisDoc{
		ChainID: opts.ChainID, GenesisTime: cmttime.Now(), ConsensusParams: cmttypes.DefaultConsensusParams(), AppState: state,
	}
	if doc.ChainID == "" {
		doc.ChainID = "starling-" + randomLetters(6)
	}
	doc.ConsensusParams.Version.App = app.GenesisVersion
	doc.ConsensusParams.Block.MaxBytes = DefaultBlockBytes
	if err := doc.ValidateAndComplete(); err != nil {
		return nil, err
	}
	return doc, config.CheckBlockLimits(doc)
}

// randomLetters returns random letters for a chain id. They are not secret; they make test networks
// differ.
func randomLetters(n int) string {
	// 32 letters, so that each byte selects one with equal probability.
	const letters = "abcdefghijkmnpqrstuvwxyz23456789"
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	for i := range b {
		b[i] = letters[b[i]%byte(len(letters))]
	}
	return string(b)
}
