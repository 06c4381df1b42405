package home

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/internal/durable"
)

// UpgradeInfoFile is the file in which cosmovisor looks for the upgrade that a program stopped for.
func UpgradeInfoFile(home string) string { return filepath.Join(home, "data", "upgrade-info.json") }

// upgradeInfo is the JSON that cosmovisor reads (cosmossdk.io/x/upgrade/types, Plan).
type upgradeInfo struct {
	Name   string `json:"name"`   // folder of the program: upgrades/NAME/bin
	Height int64  `json:"height"` // first block that needs it
	Info   string `json:"info,omitempty"`
}

// WriteUpgradeInfo writes the file that makes cosmovisor switch to the program that the chain
// needs: upgrades/v2 for app version 2. It does nothing if the upgrade height is unknown.
func WriteUpgradeInfo(home string, e *app.UpgradeError) error {
	if e.Height <= 0 {
		return nil
	}
	raw, err := json.Marshal(upgradeInfo{Name: fmt.Sprintf("v%d", e.Version), Height: e.Height + 1, Info: e.Info})
	if err != nil {
		return err
	}
	if err := durable.Write(UpgradeInfoFile(home), append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the file for cosmovisor: %w", err)
	}
	return nil
}
