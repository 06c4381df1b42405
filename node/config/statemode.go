package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/starling-kv/starling/internal/durable"
)

// ErrOtherMode: the data of a home were created in the other state.mode.
var ErrOtherMode = errors.New("data of the other state.mode")

// ModeFile is the file in CometBFT's data folder that marks the state as sharded. A home without it
// has a full state, or none yet.
func ModeFile(dataDir string) string { return filepath.Join(dataDir, "state_mode.json") }

// modeMark is the content of ModeFile.
type modeMark struct {
	Mode    string `json:"mode"` // ModeSharded
	ChainID string `json:"chain_id"`
}

// ModeOf returns the mode in which the data of a home were created, and the chain if it is
// recorded. mode "": no data of the home depend on the mode.
func ModeOf(dataDir string) (mode, chainID string, err error) {
	raw, err := os.ReadFile(ModeFile(dataDir))
	switch {
	case errors.Is(err, fs.ErrNotExist) && Exists(StateDir(dataDir)):
		return ModeLocal, "", nil
	case errors.Is(err, fs.ErrNotExist):
		return "", "", nil
	case err != nil:
		return "", "", err
	}
	var mark modeMark
	if err := json.Unmarshal(raw, &mark); err != nil || mark.Mode != ModeSharded || mark.ChainID == "" {
		return "", "", fmt.Errorf("%q is damaged: it should record the state.mode of this home: restore the file, or start over with `starlingd unsafe-reset-all`", ModeFile(dataDir))
	}
	return mark.Mode, mark.ChainID, nil
}

// CheckMode returns ErrOtherMode, which also matches ErrInvalid, if the data of a home were created
// in a mode other than mode.
func CheckMode(dataDir, mode string) error {
	made, _, err := ModeOf(dataDir)
	switch {
	case err != nil || made == "" || made == mode:
		return err
	case made == ModeSharded:
		return Invalid(fmt.Errorf("%w: storage nodes keep the state of this home (%q): set [state] mode = %q in app.toml, or start over with `starlingd unsafe-reset-all` and `starlingd join`",
			ErrOtherMode, ModeFile(dataDir), ModeSharded))
	}
	return Invalid(fmt.Errorf("%w: this home has the whole state, in %q: set [state] mode = %q in app.toml; or move that folder away to let storage nodes keep the state",
		ErrOtherMode, StateDir(dataDir), ModeLocal))
}

// MarkSharded durably records that storage nodes keep the state of a home. Call it before writing
// the first data that the other mode would misread, for a home that CheckMode accepts.
func MarkSharded(dataDir, chainID string) (err error) {
	raw, err := json.Marshal(modeMark{ModeSharded, chainID})
	if err != nil {
		return err
	}
	path := ModeFile(dataDir)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(raw) {
		return nil
	}
	return durable.Write(path, raw, 0o600)
}
