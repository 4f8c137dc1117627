"""Where, when and with which code committed results were measured."""
