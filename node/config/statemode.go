package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ErrOtherMode: the data of a home were made in the other state.mode.
var ErrOtherMode = errors.New("data of the other state.mode")

// ModeFile is the file in CometBFT's data folder that says that the state is sharded. A home
// without it has its state itself, or none yet.
func ModeFile(dataDir string) string { return filepath.Join(dataDir, "state_mode.json") }

// modeMark is the content of ModeFile.
type modeMark struct {
	Mode    string `json:"mode"` // ModeSharded
	ChainID string `json:"chain_id"`
}

// ModeOf returns the mode in which the data of a home were made, and the chain if the home says it.
// mode "": there are none that either mode would mind.
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
		return "", "", fmt.Errorf("%q does not say in which state.mode this home was made, although Starling writes it whole: put it back, or start over with `starlingd unsafe-reset-all`", ModeFile(dataDir))
	}
	return mark.Mode, mark.ChainID, nil
}

// CheckMode returns ErrOtherMode, which matches ErrInvalid, if the data of a home were made in
// another mode than mode.
func CheckMode(dataDir, mode string) error {
	made, _, err := ModeOf(dataDir)
	switch {
	case err != nil || made == "" || made == mode:
		return err
	case made == ModeSharded:
		return Invalid(fmt.Errorf("%w: storage nodes keep the state of this home (%q): set [state] mode = %q in app.toml, or start over with `starlingd unsafe-reset-all` and `starlingd join`",
			ErrOtherMode, ModeFile(dataDir), ModeSharded))
	}
	return Invalid(fmt.Errorf("%w: this home has the whole state, in %q: set [state] mode = %q in app.toml; or, so that storage nodes keep the state from now on, move that folder away",
		ErrOtherMode, StateDir(dataDir), ModeLocal))
}

// MarkSharded records durably that storage nodes keep the state of a home. It is to be called
// before there is anything that the other mode would misunderstand, with a home that CheckMode
// accepts.
func MarkSharded(dataDir, chainID string) (err error) {
	raw, err := json.Marshal(modeMark{ModeSharded, chainID})
	if err != nil {
		return err
	}
	path := ModeFile(dataDir)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(raw) {
		return nil
	}
	begun := path + ".begun"
	file, err := os.OpenFile(begun, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(raw)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(begun, path); err != nil {
		return err
	}
	dir, err := os.Open(dataDir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
