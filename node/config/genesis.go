package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cometbft/cometbft/crypto"
	"github.com/cometbft/cometbft/crypto/ed25519"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
)

// ErrGenesis: the genesis file cannot be used.
var ErrGenesis = errors.New("genesis file")

// LoadGenesis reads and checks a genesis file: its form, app_state and limits. An unknown field is
// an error that names it. Errors wrap ErrGenesis and match ErrInvalid, except disk failures.
func LoadGenesis(path string) (*cmttypes.GenesisDoc, error) {
	doc, err := loadGenesis(path)
	return doc, Invalid(err)
}

func loadGenesis(path string) (*cmttypes.GenesisDoc, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w %q is missing: copy the network's genesis file there, or run `starlingd init` for a network of your own (%w)", ErrGenesis, path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGenesis, err)
	}
	doc, err := ParseGenesis(raw)
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w%s", ErrGenesis, path, err, adoptHint(doc, path))
	}
	return doc, nil
}

// adoptHint returns a hint with the command that converts the genesis file of another program; "":
// it is not such a file.
func adoptHint(doc *cmttypes.GenesisDoc, path string) string {
	switch {
	case doc == nil || !ForeignGenesis(doc):
		return ""
	case HasAppState(doc):
		return fmt.Sprintf(": if `cometbft init` made the file, run `starlingd genesis adopt %s` before CometBFT is started with it", Quote(path))
	default:
		return fmt.Sprintf(" (as in a file that `cometbft init` made): run `starlingd genesis adopt %s --admin PUBKEY`, or with --open to let anyone write, "+
			"before CometBFT is started with it", Quote(path))
	}
}

// ForeignGenesis reports whether a document has neither app_state nor an application version, such
// as the document of `cometbft init`. Every genesis file of Starling has both.
func ForeignGenesis(doc *cmttypes.GenesisDoc) bool {
	return !HasAppState(doc) || doc.ConsensusParams.Version.App == 0
}

// HasAppState reports whether a document has an app_state of any content.
func HasAppState(doc *cmttypes.GenesisDoc) bool {
	return len(doc.AppState) > 0 && string(doc.AppState) != "null"
}

// DecodeGenesis reads a genesis document like CometBFT, whose own decoder panics if a validator's
// key is missing or has a wrong length. Unknown fields are ignored, and app_state is not checked.
func DecodeGenesis(raw []byte) (*cmttypes.GenesisDoc, error) {
	doc := new(cmttypes.GenesisDoc)
	if err := cmtjson.Unmarshal(raw, doc); err != nil {
		return nil, err
	}
	for i, v := range doc.Validators {
		if key, is := v.PubKey.(ed25519.PubKey); !is || len(key) != ed25519.PubKeySize {
			return nil, fmt.Errorf("validators[%d] has no ed25519 pub_key: other types are not supported", i)
		}
	}
	return doc, doc.ValidateAndComplete()
}

// DecodeGenesisStrictly is DecodeGenesis, but an unknown field is an error that names it.
func DecodeGenesisStrictly(raw []byte) (*cmttypes.GenesisDoc, error) {
	if err := checkNames(raw, reflect.TypeFor[cmttypes.GenesisDoc](), ""); err != nil {
		return nil, err
	}
	return DecodeGenesis(raw)
}

// ParseGenesis checks the content of a genesis file like LoadGenesis. If the document could be
// decoded, it is also returned with an error.
func ParseGenesis(raw []byte) (*cmttypes.GenesisDoc, error) {
	doc, err := DecodeGenesisStrictly(raw)
	if err != nil {
		return nil, err
	}
	return doc, checkGenesis(doc)
}

func checkGenesis(doc *cmttypes.GenesisDoc) error {
	if !HasAppState(doc) {
		return errors.New("app_state is missing")
	}
	if _, err := app.ParseGenesis(doc.AppState); err != nil {
		return err
	}
	if doc.ConsensusParams.Version.App != app.GenesisVersion {
		return fmt.Errorf("consensus_params.version.app is %d, a Starling chain begins with %d (an upgrade raises it later): correct the file, or run the network's release",
			doc.ConsensusParams.Version.App, app.GenesisVersion)
	}
	if err := checkValidators(doc); err != nil {
		return err
	}
	return CheckBlockLimits(doc)
}

// checkValidators refuses validator sets that would make CometBFT panic. (An empty set is an error
// of InitChain.)
func checkValidators(doc *cmttypes.GenesisDoc) error {
	sum, seen := uint64(0), map[string]int{}
	for i, v := range doc.Validators {
		if v.Power < 1 || uint64(v.Power) > app.MaxTotalPower {
			return fmt.Errorf("validators[%d] (%q) has power %d, it must be from 1 to %d", i, v.Name, v.Power, uint64(app.MaxTotalPower))
		}
		if sum += uint64(v.Power); sum > app.MaxTotalPower {
			return fmt.Errorf("the validators' powers sum up to more than %d", uint64(app.MaxTotalPower))
		}
		key := string(v.PubKey.Bytes())
		if other, is := seen[key]; is {
			return fmt.Errorf("validators[%d] (%q) has the same key as validators[%d]", i, v.Name, other)
		}
		seen[key] = i
	}
	return nil
}

// InitChainRequest returns the InitChain call of a CometBFT with this genesis document.
func InitChainRequest(doc *cmttypes.GenesisDoc) *abci.RequestInitChain {
	params := doc.ConsensusParams.ToProto()
	updates := make([]abci.ValidatorUpdate, 0, len(doc.Validators))
	for _, v := range doc.Validators {
		updates = append(updates, cmttypes.TM2PB.ValidatorUpdate(cmttypes.NewValidator(v.PubKey, v.Power)))
	}
	return &abci.RequestInitChain{
		Time: doc.GenesisTime, ChainId: doc.ChainID, InitialHeight: doc.InitialHeight, ConsensusParams: &params,
		Validators: updates, AppStateBytes: doc.AppState,
	}
}

// opaque are the types whose JSON is not an object with the struct's fields, or that are checked
// elsewhere.
var opaque = []reflect.Type{reflect.TypeFor[time.Time](), reflect.TypeFor[crypto.PubKey](), reflect.TypeFor[json.RawMessage]()}

// checkNames refuses fields that t does not have. CometBFT's decoder silently ignores them.
func checkNames(raw []byte, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case slices.Contains(opaque, t) || bytes.Equal(bytes.TrimSpace(raw), []byte("null")):
		return nil
	case t.Kind() == reflect.Struct:
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return fmt.Errorf("%s must be an object: %w", orRoot(path), err)
		}
		known := map[string]reflect.Type{}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			known[name] = t.Field(i).Type
		}
		names := make([]string, 0, len(object))
		for name := range object {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			fieldType, ok := known[name]
			if !ok {
				return fmt.Errorf("unknown field %s%s: correct its name or remove it", path, name)
			}
			if err := checkNames(object[name], fieldType, path+name+"."); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return fmt.Errorf("%s must be a list: %w", orRoot(path), err)
		}
		for i, element := range list {
			if err := checkNames(element, t.Elem(), fmt.Sprintf("%s[%d].", strings.TrimSuffix(path, "."), i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func orRoot(path string) string {
	if path == "" {
		return "the file"
	}
	return strings.TrimSuffix(path, ".")
}

// SameGenesis compares the genesis document of the file with the one that CometBFT stored at the
// first start. If they differ, the error is app.ErrOtherChain.
func SameGenesis(file, stored *cmttypes.GenesisDoc) error {
	if file.ChainID != stored.ChainID {
		return fmt.Errorf("%w: the data belongs to chain %q, the genesis file to chain %q: restore the right genesis file, or use another folder for --home",
			app.ErrOtherChain, stored.ChainID, file.ChainID)
	}
	a, err := canonicalGenesis(file)
	if err != nil {
		return err
	}
	b, err := canonicalGenesis(stored)
	if err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return fmt.Errorf("%w: the genesis file of chain %q is not the one that this home was started with: restore the old file, or remove the data with `starlingd unsafe-reset-all`",
			app.ErrOtherChain, file.ChainID)
	}
	return nil
}

// canonicalGenesis encodes a document independently of white space and of the order of fields in
// app_state.
func canonicalGenesis(doc *cmttypes.GenesisDoc) ([]byte, error) {
	raw, err := cmtjson.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("genesis: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("genesis: %w", err)
	}
	return json.Marshal(value)
}
