// Command sandpit-guest is the first process in every sandbox.
package main

import (
	"os"

	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

func main() { os.Exit(guest.Main()) }
