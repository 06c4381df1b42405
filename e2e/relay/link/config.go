package link

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Config is what a relay is started with.
type Config struct {
	Control string `json:"control"` // host:port of the control endpoint
	Links   []Link `json:"links"`
}

// Link is one address at which a node reaches another.
type Link struct {
	From   string `json:"from"` // the node that dials
	To     string `json:"to"`   // the node behind target
	Listen string `json:"listen"`
	Target string `json:"target"`
}

// Treatment is what happens to the bytes that one node sends another.
type Treatment struct {
	// Cut keeps them, as a network does that loses every packet: connections that are there stall,
	// new ones are not answered. What was sent meanwhile arrives once the link is whole again,
	// unless sender or receiver has given up.
	Cut   bool          `json:"cut"`
	Delay time.Duration `json:"delay"` // one way, in nanoseconds
	// bytes a second and direction, over all connections; 0: no limit
	Bandwidth int64 `json:"bandwidth"`
}

// Setting is a treatment of a pair of nodes, as the control endpoint takes it.
type Setting struct {
	From string `json:"from"` // the sender, whoever dialled
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
