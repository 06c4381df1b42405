package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Config is the configuration of a relay.
type Config struct {
	Control string `json:"control"` // host:port of the control endpoint
	Links   []Link `json:"links"`
	// Homes are the nodes' homes, by name. For a link that several nodes dial, the relay finds the
	// process that has dialled, on Linux, and then the node by a home among the arguments.
	Homes map[string]string `json:"homes,omitempty"`
}

// Link is one address at which a node reaches another.
type Link struct {
	From   string `json:"from"` // the node that dials; empty: any
	To     string `json:"to"`   // the node behind target
	Listen string `json:"listen"`
	Target string `json:"target"`
}

// Treatment describes how the bytes from one node to another are treated.
type Treatment struct {
	// Cut holds the bytes back, as a network that loses every packet: existing connections stall,
	// and new ones are not answered. Held bytes arrive once the link works again, unless sender or
	// receiver has timed out.
	Cut   bool          `json:"cut"`
	Delay time.Duration `json:"delay"` // one way, in nanoseconds
	// bytes a second in each direction, over all connections; 0: no limit
	Bandwidth int64 `json:"bandwidth"`
}

// Setting is the treatment for a pair of nodes, as the control endpoint accepts it.
type Setting struct {
	From string `json:"from"` // the sender, whichever side dialled
	To   string `json:"to"`
	Treatment
}

func (t Treatment) check() error {
	if t.Delay < 0 || t.Bandwidth < 0 {
		return errors.New("delay and bandwidth must be 0 or more")
	}
	return nil
}

// ReadConfig reads a configuration from a JSON file.
func ReadConfig(path string) (Config, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	var c Config
	if err := json.Unmarshal(content, &c); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Write writes the configuration into a file.
func (c Config) Write(path string) error {
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
