"""What happens when processes die or freeze, connections break and handlers misbehave: on the real stores."""
