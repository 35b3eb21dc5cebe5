// Program compose says whether Docker Compose understands a file: it loads it with Compose's own library.
//
//	compose FILE [PROFILE...]
//
// Exit code: 0 it does, 1 it does not, and why.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: compose FILE [PROFILE...]")
		os.Exit(2)
	}
	if err := load(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func load(file string, profiles []string) error {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithOsEnv, cli.WithProfiles(profiles))
	if err != nil {
		return err
	}
	_, err = options.LoadProject(context.Background())
	return err
}
