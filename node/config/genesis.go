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

	"github.com/cometbft/cometbft/crypto"
	cmtjson "github.com/cometbft/cometbft/libs/json"
	cmttypes "github.com/cometbft/cometbft/types"

	"github.com/starling-kv/starling/app"
)

// ErrGenesis: the genesis file cannot be used.
var ErrGenesis = errors.New("genesis file")

// LoadGenesis reads and checks a genesis file: its form, where unknown fields are refused by name,
// app_state, and limits. Errors wrap ErrGenesis and match ErrInvalid, unless the disk failed.
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
	doc, err := parseGenesis(raw)
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrGenesis, path, err)
	}
	return doc, nil
}

func parseGenesis(raw []byte) (*cmttypes.GenesisDoc, error) {
	if err := checkNames(raw, reflect.TypeFor[cmttypes.GenesisDoc](), ""); err != nil {
		return nil, err
	}
	doc, err := cmttypes.GenesisDocFromJSON(raw)
	if err != nil {
		return nil, err
	}
	if _, err := app.ParseGenesis(doc.AppState); err != nil {
		return nil, err
	}
	if doc.ConsensusParams.Version.App != app.GenesisVersion {
		return nil, fmt.Errorf("consensus_params.version.app is %d, every chain of Starling begins with %d (an admin's upgrade raises it later): correct the file, or run the release that fits the network",
			doc.ConsensusParams.Version.App, app.GenesisVersion)
	}
	if err := CheckBlockLimits(doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// opaque are the types whose JSON is not an object with the struct's fields, or is checked
// elsewhere.
var opaque = []reflect.Type{reflect.TypeFor[time.Time](), reflect.TypeFor[crypto.PubKey](), reflect.TypeFor[json.RawMessage]()}

// checkNames refuses a field that t does not have. CometBFT's decoder ignores those silently.
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
// first start. Where they differ the error is app.ErrOtherChain.
func SameGenesis(file, stored *cmttypes.GenesisDoc) error {
	if file.ChainID != stored.ChainID {
		return fmt.Errorf("%w: the data belongs to chain %q, the genesis file to chain %q: put the right genesis file back, or give --home another folder",
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
		return fmt.Errorf("%w: the genesis file of chain %q is not the one that this home was started with: put the old one back, or remove the data with `starlingd unsafe-reset-all`",
			app.ErrOtherChain, file.ChainID)
	}
	return nil
}

// canonicalGenesis encodes a document so that neither white space nor the order of fields in
// app_state matters.
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
