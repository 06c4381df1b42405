package home

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/starling-kv/starling/app"
)

// UpgradeInfoFile is where cosmovisor looks for the upgrade that a program stopped for.
func UpgradeInfoFile(home string) string { return filepath.Join(home, "data", "upgrade-info.json") }

// upgradeInfo is the form that cosmovisor reads (cosmossdk.io/x/upgrade/types, Plan).
type upgradeInfo struct {
	Name   string `json:"name"`   // of the folder with the program: upgrades/NAME/bin
	Height int64  `json:"height"` // of the first block that needs it
	Info   string `json:"info,omitempty"`
}

// WriteUpgradeInfo writes the file by which cosmovisor installs the program that the chain needs:
// upgrades/v2 for app version 2. It does nothing if the height of the upgrade is not known.
func WriteUpgradeInfo(home string, e *app.UpgradeError) error {
	if e.Height <= 0 {
		return nil
	}
	raw, err := json.Marshal(upgradeInfo{Name: fmt.Sprintf("v%d", e.Version), Height: e.Height + 1, Info: e.Info})
	if err != nil {
		return err
	}
	if err := replaceFile(UpgradeInfoFile(home), append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("the file for cosmovisor: %w", err)
	}
	return nil
}
